"""A generator, a cluster and metrics without engines behind them, for tests of the REST front end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from muster import v1 as wire

from gateway.embedding_request import EmbeddingRequest, PoolingMethod, Vector
from gateway.errors import Loading
from gateway.generation_request import (
    ChoiceDelta,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    GenerationUsage,
    PromptReport,
    TokenLogprob,
)
from gateway.ports import RankLoad, RankProgress
from gateway.tokenizer import Tokenizer
from tests.support.tokenizer_files import tiny_tokenizer

MAX_MODEL_LEN = 512
EMBEDDING_SIZE = 4
MODEL_NAMES = ("tiny", "org/tiny-chat")
CACHED_TOKENS = 1

Script = Callable[[GenerationRequest, Tokenizer], AsyncGenerator[GenerationEvent, None]]


def answer_text(prompt_token_ids: Sequence[int], choice: int) -> str:
    """What choice `choice` of a prompt says; different for every prompt and choice, with a character of four bytes."""
    return f"hello {sum(prompt_token_ids) % 97}.{choice} 🙂 world"


def logprob_of(token_id: int, logprobs: int | None) -> tuple[TokenLogprob, ...]:
    """A made-up distribution: the token itself, then its two neighbours."""
    if logprobs is None:
        return ()
    top = tuple(((token_id + rank) % 260, -0.5 - rank) for rank in range(3))
    return (TokenLogprob(token_id, -0.5, 1, top[:logprobs]),)


def prompt_logprobs(request: GenerationRequest) -> tuple[TokenLogprob, ...]:
    if request.prompt_logprobs is None:
        return ()
    first, *rest = request.prompt_token_ids
    entries = [entry for token_id in rest for entry in logprob_of(token_id, request.prompt_logprobs)]
    return (TokenLogprob(first, None, 0), *entries)


def deltas(index: int, request: GenerationRequest, tokenizer: Tokenizer) -> list[ChoiceDelta]:
    """One delta per character, then an end token; cut at max_tokens or the first stop string."""
    text, reason, stop = answer_text(request.prompt_token_ids, index), FinishReason.STOP, None
    for string in request.stop_strings:
        if string in text:
            text, stop = text[: text.index(string)], string
    found: list[ChoiceDelta] = []
    num_left = 10_000 if request.max_tokens is None else request.max_tokens
    for character in text:
        ids = tuple(tokenizer.encode(character))
        if len(ids) > num_left:
            reason = FinishReason.LENGTH
            break
        num_left -= len(ids)
        entries = tuple(entry for token_id in ids for entry in logprob_of(token_id, request.logprobs))
        found.append(ChoiceDelta(index, character, ids, entries))
    ends_with_token = reason is FinishReason.STOP and stop is None and num_left
    last = (2,) if ends_with_token else ()
    if not num_left:
        reason = FinishReason.LENGTH
    entries = logprob_of(2, request.logprobs) if last else ()
    return [*found, ChoiceDelta(index, "", last, entries, reason, stop)]


async def answer(request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
    """Answers every choice, the choices interleaved."""
    yield PromptReport(len(request.prompt_token_ids), CACHED_TOKENS, prompt_logprobs(request))
    choices = [deltas(index, request, tokenizer) for index in range(request.n)]
    for position in range(max(map(len, choices))):
        for choice in choices:
            if position < len(choice):
                yield choice[position]
    num_tokens = sum(len(delta.token_ids) for choice in choices for delta in choice)
    yield GenerationUsage(len(request.prompt_token_ids), num_tokens, CACHED_TOKENS)


@dataclass
class ScriptedGenerator:
    """Runs `script` for each request and remembers what came and how it ended."""

    script: Script = answer
    requests: list[GenerationRequest] = field(default_factory=list)
    num_open: int = 0
    num_cancelled: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(self, request: GenerationRequest, tokenizer: Tokenizer) -> AsyncGenerator[GenerationEvent, None]:
        self.requests.append(request)
        self.num_open += 1
        self.started.set()
        events = self.script(request, tokenizer)
        try:
            async for event in events:
                yield event
        except (GeneratorExit, asyncio.CancelledError):
            self.num_cancelled += 1
            raise
        finally:
            self.num_open -= 1
            await events.aclose()


def vector_of(tokens: Sequence[int], request: EmbeddingRequest) -> Vector:
    """What ScriptedEmbedder makes of an input."""
    values = (float(len(tokens)), float(sum(tokens)), -0.5, 1.0 if request.pooling is PoolingMethod.LAST else 0.0)
    return values[: request.dimensions]


@dataclass
class ScriptedEmbedder:
    """Answers at once, or when `gate` is set, or with `error`."""

    requests: list[EmbeddingRequest] = field(default_factory=list)
    error: Exception | None = None
    gate: asyncio.Event | None = None
    num_cancelled: int = 0

    async def embed(self, request: EmbeddingRequest) -> list[Vector]:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.num_cancelled += 1
                raise
        return [vector_of(tokens, request) for tokens in request.inputs]


@dataclass
class ScriptedCluster:
    """Two ready ranks with the tiny tokenizer, unless told otherwise."""

    ready: bool = True
    num_ranks: int = 2
    loaded: bool = True
    served: Tokenizer = field(default_factory=tiny_tokenizer)

    def models(self) -> list[wire.ModelInfo]:
        if not self.loaded:
            return []
        return [
            wire.ModelInfo(
                served_model_names=MODEL_NAMES,
                architecture="llama",
                dtype="float32",
                max_model_len=MAX_MODEL_LEN,
                vocab_size=self.served.vocab_size,
                eos_token_ids=[2],
                fingerprint="f" * 64,
                embedding_size=EMBEDDING_SIZE,
            )
        ]

    def tokenizer(self) -> Tokenizer:
        if not self.loaded:
            raise Loading("The model is loading.")
        return self.served

    def progress(self) -> list[RankProgress]:
        if self.ready:
            return [RankProgress(rank, "ready", "serving", 100.0, "host") for rank in range(self.num_ranks)]
        return [RankProgress(0, "joining", "loading_weights", 40.0, "host")]

    def loads(self) -> list[RankLoad]:
        return [RankLoad(rank, "ready", rank, 2, 0.25, 3, 0.1) for rank in range(self.num_ranks)]


@dataclass
class RecordedMetrics:
    """Remembers what was counted as (route, method, status)."""

    requests: list[tuple[str, str, int]] = field(default_factory=list)

    def render(self) -> bytes:
        return b"muster:up 1\n"

    def http_request(self, route: str, method: str, status: int, duration_s: float) -> None:
        assert duration_s >= 0
        self.requests.append((route, method, status))
