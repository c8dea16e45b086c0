"""A channel that shows a token with every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class TokenChannel:
    """Wraps a channel of either kind (grpc.aio or blocking). The token is asked for at every call.

    gRPC's own call credentials refuse plaintext connections, also Unix sockets; its client interceptors put a queue
    between writer and stream.
    """

    def __init__(self, channel: Any, token: Callable[[], str]) -> None:
        self._channel = channel
        self._token = token

    def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._with_token(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._with_token(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._with_token(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._with_token(self._channel.stream_stream(*args, **kwargs))

    def _with_token(self, multi_callable: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            shown = (*(metadata or ()), ("authorization", f"Bearer {self._token()}"))
            return multi_callable(*args, metadata=shown, **kwargs)

        return call

    async def __aenter__(self) -> TokenChannel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *ended: Any) -> None:
        await self._channel.__aexit__(*ended)

    def __enter__(self) -> TokenChannel:
        self._channel.__enter__()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._channel.__exit__(*ended)

    def __getattr__(self, name: str) -> Any:  # close, get_state, channel_ready, …
        return getattr(self._channel, name)
