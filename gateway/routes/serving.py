"""What endpoints share: reading requests, finding the model, answering, and noticing that a client has gone."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from muster import v1 as wire
from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import InvalidRequest, Loading, ModelNotFound
from gateway.event_stream import EventStream, until_disconnect
from gateway.generation_request import GenerationRequest
from gateway.json_body import check_content, parse_object
from gateway.lifecycle import Lifecycle
from gateway.middleware.access import CLIENT_LEFT
from gateway.middleware.request_id import sanitized
from gateway.openai.envelope import Envelope
from gateway.openai.fields import shown
from gateway.openai.options import GenerationOptions, ModelLimits
from gateway.ports import Cluster, Deployment, Metrics, TextGenerator
from gateway.prompts import off_loop
from gateway.reasoning import ReasoningFormat
from gateway.request_limits import RANK_KEY, valid_traceparent
from gateway.settings import AppSettings
from gateway.tokenizer import Tokenizer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serving:
    """Everything endpoints work with."""

    generator: TextGenerator
    cluster: Cluster
    metrics: Metrics
    settings: AppSettings
    lifecycle: Lifecycle
    deployment: Deployment | None = None

    def open_for_requests(self) -> None:
        """Raises Draining when this gateway is about to stop."""
        if self.lifecycle.draining:
            raise self.lifecycle.error()

    def model(self, name: object) -> ServedModel:
        """The model asked for; without a name the one that is served. Raises Loading and ModelNotFound."""
        tokenizer = self.cluster.tokenizer()
        models = self.cluster.models()
        if not models:
            raise Loading("The model is loading. Try again soon.")
        if name is not None and not isinstance(name, str):
            raise InvalidRequest("model", "Invalid 'model': expected a string.")
        for model in models:
            if not name or name in model.served_model_names:
                return ServedModel(name or _preferred(model), model, tokenizer)
        if self.settings.any_model_name:
            return ServedModel(_preferred(models[0]), models[0], tokenizer)
        raise ModelNotFound(str(name)[:200], [served for model in models for served in model.served_model_names])

    async def answer(self, request: Request, work: Coroutine[Any, Any, Mapping[str, object]]) -> Response:
        """Runs `work` for as long as the client waits for it. A client that leaves cancels it, and with it the request
        in the engine: servers only notice that by themselves for streams."""
        task = asyncio.create_task(work, name="answer")
        gone = asyncio.create_task(until_disconnect(request.receive), name="answer-disconnect")
        try:
            with self.lifecycle.answering(task):
                await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.cancelled():
                raise self.lifecycle.error()
            return json_response(task.result()) if task.done() else Response(status_code=CLIENT_LEFT)
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    def stream(self, events: AsyncGenerator[bytes, None], **forms: Any) -> EventStream:
        """Sends the bytes of each event as they come; `forms` are EventStream's `fail` and `ping`."""
        return EventStream(events, ping_interval_s=self.settings.ping_interval_s, lifecycle=self.lifecycle, **forms)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A served model under the name the client used."""

    name: str
    info: wire.ModelInfo
    tokenizer: Tokenizer

    @property
    def limits(self) -> ModelLimits:
        return ModelLimits(self.info.vocab_size, self.info.max_model_len)


async def read_object(request: Request, parse: Callable[[dict[str, object]], T]) -> T:
    """Reads the body as a JSON object and hands it to `parse`, in a thread when it is large."""
    check_content(request.headers.get("content-type", ""), request.headers.get("content-encoding", ""))
    body = await request.body()
    return await off_loop(len(body), lambda: parse(parse_object(body)))


def json_response(body: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status_code=status, headers=dict(headers or {}), media_type="application/json")


def envelope(request: Request, options: GenerationOptions, model: ServedModel, prefix: str, version: str) -> Envelope:
    """The header wins over the body for the request's id."""
    own_id = "" if "x-request-id" in request.headers else sanitized(options.request_id or "")
    return Envelope(
        response_id=f"{prefix}-{own_id or request.state.request_id}",
        created=int(time.time()),
        model=model.name,
        fingerprint=f"muster-{version}-{model.info.fingerprint[:12]}",
    )


def chosen_rank(request: Request, named: int | None, num_ranks: int) -> int | None:
    """The global rank the client insists on, in a header or, as `named`, in the body. A wrong one is an error: ignoring
    it would hide routing bugs."""
    text = request.headers.get(RANK_KEY)
    if text is None and named is None:
        return None
    param = RANK_KEY if text is not None else "routed_dp_rank"
    rank = named if text is None else int(text) if re.fullmatch(r"[0-9]{1,9}", text.strip()) else None
    if rank is None or rank >= num_ranks:
        valid = ", ".join(map(str, range(num_ranks))) if num_ranks <= 16 else f"0 to {num_ranks - 1}"
        given = shown(named if text is None else text)
        raise InvalidRequest(param, f"Invalid '{param}': got {given}; valid ranks are {valid or 'none yet'}.")
    return rank


def generation_request(
    request: Request,
    options: GenerationOptions,
    model: ServedModel,
    *,
    request_id: str,
    prompt_token_ids: tuple[int, ...],
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    rank: int | None,
    timeout_s: float | None,
    reasoning: ReasoningFormat | None = None,
    kept_token_ids: frozenset[int] = frozenset(),
    streamed: bool = True,
) -> GenerationRequest:
    """What goes to the cluster; `options` have their bad words spelled. The bound on tokens is lowered to what the
    context has left."""
    room = model.info.max_model_len - len(prompt_token_ids)
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        sampling=options.sampling,
        max_tokens=None if max_tokens is None else min(max_tokens, room),
        min_tokens=min(options.min_tokens, room),
        stop_token_ids=options.stop_token_ids,
        ignore_eos=options.ignore_eos,
        stop_strings=options.stop_strings,
        include_stop_string=options.include_stop_string,
        n=options.n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        skip_special_tokens=options.skip_special_tokens,
        rank=rank,
        priority=options.priority,
        cache_salt=options.cache_salt,
        affinity=options.affinity or request.headers.get("x-session-id", "")[:256] or None,
        constraint=options.constraint,
        timeout_s=timeout_s,
        traceparent=valid_traceparent(request.headers.get("traceparent", "")),
        reasoning=reasoning,
        kept_token_ids=kept_token_ids,
        stream_interval=options.stream_interval,
        streamed=streamed,
    )


def _preferred(model: wire.ModelInfo) -> str:
    return model.served_model_names[0] if model.served_model_names else model.architecture
