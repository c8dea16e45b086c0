"""The deployment's other callers during an abuse: four kinds of requests, each on a connection of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import grpc
import orjson
from muster import v1 as wire

_TIMEOUT_S = 30.0
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
_PROMPTS = ("Once upon a time", "The heron", "Seven doors", "A long road", "Under the bridge")


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: when it began, on the monotonic clock, how long it took, and what was wrong with it."""

    kind: str
    began_s: float
    took_s: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Doors:
    """Where to ask."""

    url: str
    inference: str
    head: str
    engines: Sequence[str]


@dataclass
class OtherCallers:
    """Closed loops until `stop` is set; `samples` is everything they did."""

    doors: Doors
    num_tokens: int
    num_each: int = 2
    samples: list[Sample] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        kinds: dict[str, Callable[[str], Awaitable[None]]] = {
            "REST": self._rest,
            "InferenceService": self._inference,
            "EngineService": self._engine,
            "RendezvousService": self._head,
        }
        self._turns = itertools.cycle(self.doors.engines)
        loops = [self._loop(kind, ask) for kind, ask in kinds.items() for _ in range(self.num_each)]
        await asyncio.gather(*loops)

    async def _loop(self, kind: str, ask: Callable[[str], Awaitable[None]]) -> None:
        for number in itertools.count():
            if self.stop.is_set():
                return
            began_s, failure = time.monotonic(), ""
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await ask(f"{_PROMPTS[number % len(_PROMPTS)]} {number}")
            except grpc.aio.AioRpcError as error:
                failure = f"{error.code().name} {error.details()}"
            except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
                failure = repr(error)
            self.samples.append(Sample(kind, began_s, time.monotonic() - began_s, failure))
            if kind == "RendezvousService":
                await asyncio.sleep(0.05)

    async def _rest(self, prompt: str) -> None:
        where = urlsplit(self.doors.url)
        body = orjson.dumps(
            {
                "model": "any",
                "prompt": prompt,
                "max_tokens": self.num_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
        )
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (where.netloc.encode(), len(body)) + body
            )
            answer = await reader.read(-1)
        finally:
            writer.close()
        if b" 200 " not in answer[:20] or b'"finish_reason":"length"' not in answer or b"[DONE]" not in answer:
            raise ValueError(f"answered {answer[:300]!r}…{answer[-100:]!r}")

    async def _inference(self, prompt: str) -> None:
        conditions = wire.StopConditions(max_tokens=self.num_tokens, ignore_eos=True)
        options = wire.GenerationOptions(conditions=conditions, sampling=wire.SamplingParams(temperature=0))
        request = wire.CompleteRequest(text=prompt, options=options)
        async with grpc.aio.insecure_channel(self.doors.inference, options=_OPTIONS) as channel:
            answers = [answer async for answer in wire.InferenceServiceStub(channel).Complete(request)]
        if not any(answer.HasField("usage") for answer in answers):
            raise ValueError("the stream was cut off")

    async def _engine(self, prompt: str) -> None:
        stop = wire.StopConditions(max_tokens=self.num_tokens, ignore_eos=True)
        request = wire.GenerateRequest(prompt_token_ids=list(prompt.encode()), stop=stop)
        async with grpc.aio.insecure_channel(next(self._turns), options=_OPTIONS) as channel:
            answers = [answer async for answer in wire.EngineServiceStub(channel).Generate(request)]
        if sum(len(answer.token_ids) for answer in answers) != self.num_tokens:
            raise ValueError("the stream was cut off")

    async def _head(self, prompt: str) -> None:
        async with grpc.aio.insecure_channel(self.doors.head, options=_OPTIONS) as channel:
            answer = await wire.RendezvousServiceStub(channel).GetDeployment(wire.GetDeploymentRequest())
        if any(entry.state != wire.RANK_STATE_READY for entry in answer.roster.ranks):
            raise ValueError(f"a rank is not READY: {answer.roster}")
