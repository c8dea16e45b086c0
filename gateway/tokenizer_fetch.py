"""Gets the tokenizer archive from an engine, so that a gateway needs no model files."""

from __future__ import annotations

import asyncio
import hashlib

import grpc
from muster import v1 as wire

from gateway.errors import TokenizerError

FETCH_TIMEOUT_S = 60.0
# The largest vocabularies in use take some tens of megabytes.
MAX_ARCHIVE_BYTES = 256 * 1024 * 1024


async def fetch_tokenizer_archive(channel: grpc.aio.Channel, timeout_s: float = FETCH_TIMEOUT_S) -> bytes:
    """The whole archive. Raises TokenizerError when it is cut short, altered or too large, grpc.RpcError when the
    engine cannot be reached, TimeoutError when it takes too long."""
    archive = bytearray()
    sha256 = ""
    async with asyncio.timeout(timeout_s):
        async for chunk in wire.EngineServiceStub(channel).GetTokenizer(wire.GetTokenizerRequest()):
            archive += chunk.data
            sha256 = chunk.sha256
            if len(archive) > MAX_ARCHIVE_BYTES:
                raise TokenizerError(f"the tokenizer archive is larger than {MAX_ARCHIVE_BYTES} bytes")
    if not sha256:
        raise TokenizerError(f"the tokenizer archive was cut short after {len(archive)} bytes")
    found = hashlib.sha256(archive).hexdigest()
    if found != sha256:
        raise TokenizerError(f"the tokenizer archive has SHA-256 {found}, the engine announced {sha256}")
    return bytes(archive)
