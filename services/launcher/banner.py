"""What a person reads when the deployment is ready: where it is and what to type next. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.launcher.plan import join_host_port
from services.rpc.security import OPEN, Security

_CHAT_URL = "http://127.0.0.1:8000"  # what `muster chat` asks without --url
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class Banner:
    """The facts of a ready deployment."""

    version: str
    model_name: str
    num_ranks: int
    host: str
    port: int
    grpc_port: int
    needs_key: bool
    security: Security = OPEN
    scheme: str = "http"
    uds: Path | None = None  # HTTP is served here and on no port

    @property
    def url(self) -> str:
        if self.uds is not None:
            return f"unix:{self.uds}"
        return f"{self.scheme}://{join_host_port(self.local_host, self.port)}"

    @property
    def grpc_target(self) -> str:
        return join_host_port(self.local_host, self.grpc_port)

    @property
    def local_host(self) -> str:
        return _EVERYWHERE.get(self.host.removeprefix("[").removesuffix("]"), self.host)

    @property
    def is_everywhere(self) -> bool:
        """Every address of the host is listened on, not only the one that is shown."""
        return self.local_host != self.host

    @property
    def _grpc_flags(self) -> str:
        doors = self.security
        if not doors.serves_tls:
            flags = "-plaintext"
        elif doors.tls_ca is None:
            flags = ""
        else:
            flags = f"-cacert {doors.tls_ca}"
            flags += " -cert CERT -key KEY" if doors.tls_client_auth else ""
        flags += f" -authority {doors.tls_server_name}" if doors.serves_tls and doors.tls_server_name else ""
        secret = "TOKEN" if doors.cluster_token_file is not None else "KEY" if self.needs_key else ""
        return flags + (f" -H 'authorization: Bearer {secret}'" if secret else "")

    def lines(self, *, colour: bool) -> list[str]:
        ranks = f"{self.num_ranks} rank{'s' if self.num_ranks != 1 else ''}"
        strong, plain = ("\x1b[1;32m", "\x1b[0m") if colour else ("", "")
        key = " -H 'Authorization: Bearer KEY'" if self.needs_key else ""
        chat = "muster chat" if self.url == _CHAT_URL else f"muster chat --url {self.url}"
        messages = '"messages": [{"role": "user", "content": "What is gravity?"}]'
        body = f'{{"model": "{self.model_name}", {messages}, "max_tokens": 100}}'
        curl = f"curl {self.url}"
        if self.uds is not None:
            curl = f"curl --unix-socket {self.uds} {self.scheme}://localhost"
        lines = [
            f"{strong}Muster {self.version} serves {self.model_name} on {ranks} at {self.url}{plain}",
            "",
            f"  curl    {curl}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'",
            f"  gRPC    grpcurl {self._grpc_flags} "
            f'-d \'{{{messages}, "options": {{"conditions": {{"max_tokens": 100}}}}}}\' '
            f"{self.grpc_target} muster.v1.InferenceService/Chat",
            f"  chat    {chat}{' --api-key KEY' if self.needs_key else ''}",
            "  stop    Ctrl-C",
        ]
        return lines if self.uds is None else [line for line in lines if not line.startswith("  chat")]
