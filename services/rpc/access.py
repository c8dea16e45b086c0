"""Who may call what: tokens with roles, and one interceptor that asks for them on every RPC except health."""

from __future__ import annotations

import enum
import hmac
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from services.rpc.errors import RpcError, to_status
from services.rpc.security import SecurityError

_log = logging.getLogger(__name__)

MIN_TOKEN_CHARS = 16
_RELOAD_INTERVAL_S = 1.0


class Role(enum.Flag):
    """What a token allows. `MEMBER` is a process of the deployment and may do everything."""

    WATCH = enum.auto()
    GENERATE = enum.auto()
    ADMINISTER = enum.auto()
    MEMBER = enum.auto()


_NAMES = {"watch": Role.WATCH, "generate": Role.GENERATE, "administer": Role.ADMINISTER, "member": Role.MEMBER}
EVERYTHING = Role.WATCH | Role.GENERATE | Role.ADMINISTER | Role.MEMBER

_SERVICES = {
    "muster.v1.RendezvousService": Role.WATCH,
    "muster.v1.CoordinatorService": Role.WATCH,
    "muster.v1.EngineService": Role.GENERATE,
    "muster.v1.InferenceService": Role.GENERATE,
    "muster.v1.AdminService": Role.ADMINISTER,
}
# Where one service serves callers of several kinds; any one of the roles is enough.
_METHODS = {
    "/muster.v1.RendezvousService/Register": Role.MEMBER,
    "/muster.v1.CoordinatorService/ReportLoad": Role.MEMBER,
    "/muster.v1.CoordinatorService/SyncWave": Role.MEMBER,
    "/muster.v1.EngineService/GetModel": Role.WATCH | Role.GENERATE,
    "/muster.v1.EngineService/GetStatus": Role.WATCH | Role.GENERATE,
    "/muster.v1.EngineService/WatchStats": Role.WATCH,
    "/muster.v1.InferenceService/ListModels": Role.WATCH | Role.GENERATE,
}
_OPEN_SERVICES = frozenset({"grpc.health.v1.Health"})


def roles_for(method: str) -> Role | None:
    """The roles of which a caller of "/package.Service/Method" needs one; None when everybody may.

    What is not listed (reflection, channelz, services to come) takes any valid token, except in our own package,
    where it takes a member's.
    """
    service = method.rpartition("/")[0].removeprefix("/")
    if service in _OPEN_SERVICES:
        return None
    listed = _METHODS.get(method) or _SERVICES.get(service)
    return listed or (Role.MEMBER if service.startswith("muster.") else EVERYTHING)


@dataclass(frozen=True, slots=True)
class Grant:
    """One token and what it allows."""

    token: bytes
    roles: Role


def parse_tokens(text: str, *, origin: str) -> tuple[Grant, ...]:
    """The grants of a token file: a line is `TOKEN` or `ROLES TOKEN`, roles separated by commas; # begins a comment.

    A token alone is a member's. Raises SecurityError naming the line, never the token.
    """
    grants = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{origin}, line {number}"
        if len(words) > 2:
            raise SecurityError(
                f"{where} has {len(words)} words; write TOKEN, or ROLES TOKEN as in: watch,generate TOKEN"
            )
        *names, token = words
        if len(token) < MIN_TOKEN_CHARS:
            raise SecurityError(
                f"{where} has a token of {len(token)} characters, which can be guessed; "
                "make one with: openssl rand -hex 32"
            )
        if not token.isascii():
            raise SecurityError(f"{where} has a token with characters beyond ASCII, which no header carries")
        grants.append(Grant(token.encode(), _parse_roles(names[0], where) if names else Role.MEMBER))
    if not grants:
        raise SecurityError(f"{origin} holds no token; make one with: openssl rand -hex 32")
    return tuple(grants)


def _parse_roles(text: str, where: str) -> Role:
    roles = Role(0)
    for name in text.split(","):
        if name not in _NAMES:
            raise SecurityError(f"{where} names the role {name!r}; the roles are {', '.join(_NAMES)}")
        roles |= _NAMES[name]
    return roles


class TokenFile:
    """The tokens of --cluster-token-file, read again when the file changes.

    The first token of the file is the one this process shows to others; all of them are accepted. So a token is
    rotated without a gap: the new one goes second into every file, then first, then the old one goes.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises SecurityError when the file cannot be read or holds no usable token."""
        self._path = path
        self._clock = clock
        self._origin = f"--cluster-token-file {path}"
        self._stamp = _stamp(path)
        self._grants = self._read()
        self._looked_at = clock()

    @property
    def grants(self) -> tuple[Grant, ...]:
        now = self._clock()
        if now >= self._looked_at + _RELOAD_INTERVAL_S:
            self._looked_at = now
            self._reload()
        return self._grants

    @property
    def own(self) -> str:
        """The token this process shows."""
        return self.grants[0].token.decode()

    def _reload(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._grants = self._read()
            _log.info("took the changed tokens of %s", self._path)
        except SecurityError as error:
            _log.error("the changed tokens are not used, the last good ones are: %s", error)

    def _read(self) -> tuple[Grant, ...]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except OSError as error:
            raise SecurityError(
                f"{self._origin} cannot be read: {error.strerror}; give a file this user may read"
            ) from error
        except UnicodeDecodeError as error:
            raise SecurityError(f"{self._origin} is no text; write one token a line") from error
        return parse_tokens(text, origin=self._origin)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class AccessInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls without a token (UNAUTHENTICATED) or with one of the wrong role (PERMISSION_DENIED).

    Tokens travel as metadata: "authorization: Bearer TOKEN", or "x-api-key: TOKEN".
    """

    def __init__(self, tokens: TokenFile, *, api_keys: Iterable[str] = ()) -> None:
        """`api_keys` allow what clients of InferenceService do."""
        self._tokens = tokens
        self._keys = tuple(Grant(key.encode(), Role.GENERATE) for key in api_keys)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        refusal = self._refusal(handler_call_details.method, handler_call_details.invocation_metadata or ())
        return await continuation(handler_call_details) if refusal is None else _refusing(refusal)

    def _refusal(self, method: str, metadata: Sequence[Any]) -> RpcError | None:
        needed = roles_for(method)
        if needed is None:
            return None
        held = self._held(_offered(metadata))
        if held is None:
            return RpcError(
                grpc.StatusCode.UNAUTHENTICATED,
                f'{method} needs a valid token: send metadata "authorization: Bearer TOKEN" with one of the tokens in '
                "this process's --cluster-token-file",
                reason="TOKEN_INVALID",
            )
        if Role.MEMBER in held or held & needed:
            return None
        wanted = " or ".join(name for name, role in _NAMES.items() if role in needed)
        has = ", ".join(name for name, role in _NAMES.items() if role in held)
        return RpcError(
            grpc.StatusCode.PERMISSION_DENIED,
            f"{method} needs a token with the role {wanted}; this one has {has}",
            reason="ROLE_MISSING",
            metadata={"needed": wanted, "held": has},
        )

    def _held(self, offered: Sequence[bytes]) -> Role | None:
        held = None
        # Every pair is compared, each in constant time: the answer's delay says nothing about the tokens.
        for grant in (*self._tokens.grants, *self._keys):
            for token in offered:
                if hmac.compare_digest(grant.token, token):
                    held = grant.roles if held is None else held | grant.roles
        return held


def _offered(metadata: Sequence[Any]) -> list[bytes]:
    offered = []
    for key, value in metadata:
        raw = value if isinstance(value, bytes) else str(value).encode()
        if key == "x-api-key":
            offered.append(raw)
        elif key == "authorization" and raw[:7].lower() == b"bearer ":
            offered.append(raw[7:].strip())
    return offered


def _refusing(error: RpcError) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that ends the call at once, whatever kind it is and whether or not the caller sends anything."""
    status = to_status(error)

    async def refuse(requests: Any, context: Any) -> None:
        await context.abort_with_status(status)

    return grpc.stream_stream_rpc_method_handler(refuse)
