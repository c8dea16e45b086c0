"""A server that does nothing: `python -m benchmarks.gateway.bare_app --port PORT --answers FILE`.

uvicorn and Starlette as they come, on the same event loop and parser as the gateway. It answers the n-th request with
the n-th of the recorded answers, piece by piece as the gateway sent it, and looks at nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route


def build_app(streams: Sequence[Sequence[bytes]], body: bytes) -> Starlette:
    """`streams` are answers in pieces, `body` one that is not streamed."""
    numbers = itertools.count()

    async def stream(request: Request) -> Response:
        await request.body()
        pieces = streams[next(numbers) % len(streams)]

        async def told() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return StreamingResponse(told(), media_type="text/event-stream")

    async def whole(request: Request) -> Response:
        await request.body()
        return Response(body, media_type="application/json")

    return Starlette(
        routes=[Route("/v1/stream", stream, methods=["POST"]), Route("/v1/whole", whole, methods=["POST"])]
    )


def write_answers(path: Path, streams: Sequence[Sequence[bytes]], body: bytes) -> None:
    """Leaves them for `main`."""
    told = {"streams": [[piece.decode() for piece in pieces] for pieces in streams], "body": body.decode()}
    path.write_text(json.dumps(told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    arguments = parser.parse_args()
    told = json.loads(arguments.answers.read_text())
    streams = [[piece.encode() for piece in pieces] for pieces in told["streams"]]
    app = build_app(streams, told["body"].encode())
    uvicorn.run(
        app, port=arguments.port, loop="uvloop", http="httptools", ws="none", access_log=False, log_level="error"
    )


if __name__ == "__main__":
    main()
