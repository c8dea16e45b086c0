"""What the gateway costs, without an engine's time: `python -m benchmarks.front`.

One gateway process pinned on one core; the engine behind it is a real gRPC server that answers at once and shares the
other core with the client. In turns with it, on the same core: uvicorn and Starlette, which send the very bytes that
the gateway sent, and do nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import psutil
import uvloop

from benchmarks.gateway.bare_app import write_answers
from benchmarks.gateway.instant_engine import MODEL_NAME, TEXT
from benchmarks.gateway.pinned import pinned, wait_until_it_answers
from benchmarks.gateway.stream_load import StreamTurn, burst, http_chunks, sse_events
from benchmarks.gateway.vllm_front import vllm_front
from benchmarks.load.connection import Connection, Origin
from benchmarks.peers.muster import default_model
from benchmarks.peers.vllm import dequantised
from engine.model.tokenizer_files import read_tokenizer_archive
from gateway.tokenizer import Tokenizer

_GATEWAY_CORE, _OTHER_CORE = 0, 1
PEERS = Path("~/.cache/muster/peers").expanduser()
_NUM_WARM_UPS = 64
_SHORT_TOKENS = 16
_PROMPT = "Why is the sky blue, and why is it red in the evening? Answer in a few sentences."


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked of each."""

    num_streams: int
    num_tokens: int
    num_short: int
    num_alone: int
    num_turns: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One server, once. Latencies in ms at one request at a time; `pieces` are HTTP chunks, each one write."""

    name: str
    tokens_per_s: float
    pieces_per_s: float
    bytes_per_s: float
    cpu_us_per_token: float
    client_share: float
    requests_per_s: float
    cpu_ms_per_request: float
    answer_ms: float
    first_piece_ms: float


class Measured:
    """A server that listens: what it is asked, and what it took."""

    def __init__(self, name: str, port: int, pid: int, size: Size, *, stream_path: str, whole_path: str) -> None:
        self._name = name
        self._origin = Origin.parse(f"http://127.0.0.1:{port}")
        self._pid = pid
        self._size = size
        self._stream_path = stream_path
        self._whole_path = whole_path
        self.streams: list[list[bytes]] = []
        self.body = b""

    async def turn(self) -> Turn:
        """Streams at once, short answers at once, then one request at a time."""
        size = self._size
        streams = await self._stream(size.num_streams, size.num_tokens)
        self.streams = [http_chunks(raw) for raw in streams.answers]
        num_tokens = size.num_streams * size.num_tokens
        requests_per_s, cpu_ms = await self._short()
        answer_ms, first_piece_ms = await self._alone()
        return Turn(
            name=self._name,
            tokens_per_s=num_tokens / streams.elapsed_s,
            pieces_per_s=sum(map(len, self.streams)) / streams.elapsed_s,
            bytes_per_s=streams.num_bytes / streams.elapsed_s,
            cpu_us_per_token=streams.server_cpu_s / num_tokens * 1e6,
            client_share=streams.client_cpu_s / streams.elapsed_s,
            requests_per_s=requests_per_s,
            cpu_ms_per_request=cpu_ms,
            answer_ms=answer_ms,
            first_piece_ms=first_piece_ms,
        )

    async def warm_up(self) -> None:
        await self._stream(_NUM_WARM_UPS, _SHORT_TOKENS)

    async def _stream(self, num_streams: int, num_tokens: int) -> StreamTurn:
        request = self._origin.request("POST", self._stream_path, _chat(num_tokens, stream=True))
        return await burst(self._origin, [request] * num_streams, self._pid)

    async def _short(self) -> tuple[float, float]:
        """Requests per second, 64 at a time, and the server's CPU milliseconds for one."""
        request = self._origin.request("POST", self._whole_path, _chat(_SHORT_TOKENS, stream=False))
        waiting = iter(range(self._size.num_short))
        server = psutil.Process(self._pid)
        before, started_s = server.cpu_times(), time.perf_counter()
        await asyncio.gather(*(self._worker(request, waiting) for _ in range(64)))
        elapsed_s, after = time.perf_counter() - started_s, server.cpu_times()
        cpu_s = after.user + after.system - before.user - before.system
        return self._size.num_short / elapsed_s, cpu_s / self._size.num_short * 1e3

    async def _worker(self, request: bytes, waiting: Iterator[int]) -> None:
        connection = await Connection.open(self._origin)
        with contextlib.closing(connection):
            for _ in waiting:
                body = await _answer(connection, request)
                self.body = body

    async def _alone(self) -> tuple[float, float]:
        """Median milliseconds of a whole answer of one token, and to the first piece of a streamed one."""
        connection = await Connection.open(self._origin)
        whole = self._origin.request("POST", self._whole_path, _chat(1, stream=False))
        streamed = self._origin.request("POST", self._stream_path, _chat(1, stream=True))
        answers, firsts = [], []
        with contextlib.closing(connection):
            for _ in range(self._size.num_alone):
                started_s = time.perf_counter()
                await _answer(connection, whole)
                answers.append(time.perf_counter() - started_s)
                firsts.append(await _first_piece(connection, streamed))
        return statistics.median(answers) * 1e3, statistics.median(firsts) * 1e3


async def _answer(connection: Connection, request: bytes) -> bytes:
    pieces: list[bytes] = []
    status = await connection.exchange(request, lambda _, piece: pieces.append(piece))
    if status != 200:
        raise RuntimeError(f"HTTP {status}: {b''.join(pieces)[:500].decode(errors='replace')}")
    return b"".join(pieces)


async def _first_piece(connection: Connection, request: bytes) -> float:
    times: list[float] = []
    started_s = time.perf_counter()
    await connection.exchange(request, lambda *_: times.append(time.perf_counter()))
    return times[0] - started_s


def _chat(num_tokens: int, *, stream: bool) -> bytes:
    return orjson.dumps(
        {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": _PROMPT}],
            "max_tokens": num_tokens,
            "temperature": 0,
            "stream": stream,
        }
    )


class Bench:
    """The processes of one run, in one folder."""

    def __init__(
        self, folder: Path, model: Path, size: Size, *, step_ms: float = 0.0, gateway_prefix: tuple[str, ...] = ()
    ) -> None:
        self._folder = folder
        self._model = model
        self._size = size
        self._step_ms = step_ms
        self._gateway_prefix = gateway_prefix

    def run(self, vllm: bool) -> list[Turn]:
        """All turns; with `vllm` its API server has one each, started once for all of them."""
        turns: list[Turn] = []
        with contextlib.ExitStack() as running:
            runner = running.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            gateway = running.enter_context(self._gateway())
            peer = running.enter_context(self._vllm()) if vllm else None
            runner.run(gateway.warm_up())
            if peer is not None:
                runner.run(peer.warm_up())
            for number in range(1, self._size.num_turns + 1):
                turns.append(runner.run(gateway.turn()))
                _say(number, turns[-1])
                # An event a token, as the simplest application would send them.
                events = [sse_events(b"".join(pieces)) for pieces in gateway.streams]
                write_answers(self._folder / "answers.json", events, gateway.body)
                with self._bare() as bare:
                    runner.run(bare.warm_up())
                    turns.append(runner.run(bare.turn()))
                _say(number, turns[-1])
                if peer is not None:
                    turns.append(runner.run(peer.turn()))
                    _say(number, turns[-1])
        return turns

    @contextlib.contextmanager
    def _vllm(self) -> Iterator[Measured]:
        """Its engine process is the scheduler of vLLM, which takes time: CPU times compare the servers alone."""
        port, folder = _free_port(), dequantised(self._model, PEERS)
        token_ids = Tokenizer.from_archive(read_tokenizer_archive(self._model)).encode(TEXT)
        log, cores = self._folder / "vllm.log", (_GATEWAY_CORE, _OTHER_CORE)
        with vllm_front(PEERS, folder, MODEL_NAME, port, token_ids, cores, log) as pid:
            path = "/chat/completions"
            yield Measured("vllm", port, pid, self._size, stream_path=path, whole_path=path)

    @contextlib.contextmanager
    def _gateway(self) -> Iterator[Measured]:
        socket_path, port = self._folder / "engine.sock", _free_port()
        engine = ["-m", "benchmarks.gateway.instant_engine", "--socket", str(socket_path), "--model", str(self._model)]
        engine += ["--step-ms", str(self._step_ms)]
        command = [*self._gateway_prefix, "-m", "services.cli", "gateway", "--head-target", f"unix:{socket_path}"]
        command += ["--port", str(port), "--grpc-port", "0", "--log-level", "warning"]
        log = self._folder / "gateway.log"
        with (
            pinned(engine, _OTHER_CORE, self._folder / "engine.log"),
            pinned(command, _GATEWAY_CORE, log) as process,
        ):
            wait_until_it_answers(f"http://127.0.0.1:{port}/readyz", process, log)
            path = "/chat/completions"
            yield Measured("gateway", port, process.pid, self._size, stream_path=path, whole_path=path)

    @contextlib.contextmanager
    def _bare(self) -> Iterator[Measured]:
        port, log = _free_port(), self._folder / "bare.log"
        answers = self._folder / "answers.json"
        command = ["-m", "benchmarks.gateway.bare_app", "--port", str(port), "--answers", str(answers)]
        with pinned(command, _GATEWAY_CORE, log) as process:
            wait_until_it_answers(f"http://127.0.0.1:{port}/", process, log)
            yield Measured("bare", port, process.pid, self._size, stream_path="/stream", whole_path="/whole")


def _say(number: int, turn: Turn) -> None:
    print(
        f"turn {number} {turn.name:8} {turn.tokens_per_s:9,.0f} tokens/s in {turn.pieces_per_s:9,.0f} pieces/s "
        f"({turn.cpu_us_per_token:5.1f} CPU µs a token, client {turn.client_share:4.0%} of a core), "
        f"{turn.requests_per_s:6,.0f} requests/s ({turn.cpu_ms_per_request:.2f} CPU ms), "
        f"alone {turn.answer_ms:.2f} ms, first piece {turn.first_piece_ms:.2f} ms",
        flush=True,
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256, help="per stream")
    parser.add_argument("--short", type=int, default=4000, help="answers that are not streamed")
    parser.add_argument("--alone", type=int, default=300, help="requests one at a time")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--step-ms", type=float, default=0.0, help="an engine that pauses so long after every step")
    parser.add_argument("--vllm", action="store_true", help="also vLLM's API server, installed by benchmarks.versus")
    parser.add_argument("--profile", type=Path, help="write a cProfile of the gateway here")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    size = Size(arguments.streams, arguments.tokens, arguments.short, arguments.alone, arguments.turns)
    prefix = ("-m", "cProfile", "-o", str(arguments.profile)) if arguments.profile else ()
    with tempfile.TemporaryDirectory(prefix="front-") as folder:
        turns = Bench(Path(folder), default_model(), size, step_ms=arguments.step_ms, gateway_prefix=prefix).run(
            arguments.vllm
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(turn) for turn in turns], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
