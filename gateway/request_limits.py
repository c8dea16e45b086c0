"""What both front ends, a model and a deployment can take of a request; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from muster import v1 as wire

from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.generation_request import GenerationRequest

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 1024  # the engine's own limit
MAX_SALT_CHARS = 256
MAX_REQUEST_ID_CHARS = 128
# A header of REST and a metadata key of gRPC.
RANK_KEY = "x-data-parallel-rank"

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def valid_traceparent(value: str) -> str:
    """The trace context, or empty: by the standard a malformed one starts a new trace and is no error."""
    return value if _TRACEPARENT.fullmatch(value) else ""


def check_request(request: GenerationRequest, model: wire.ModelInfo, ranks: Sequence[int]) -> int:
    """The bound on generated tokens that the engine gets. Raises InvalidRequest and ContextLengthExceeded.

    `max_tokens` beyond the context is lowered to what is left, because agents send large caps; a prompt that leaves no
    room is an error.
    """
    num_prompt = len(request.prompt_token_ids)
    if not num_prompt:
        raise InvalidRequest("prompt", "prompt is empty: send at least one token")
    room = model.max_model_len - num_prompt
    if room < (0 if request.max_tokens == 0 else 1):
        raise ContextLengthExceeded(num_prompt, model.max_model_len, param="prompt")
    if not 1 <= request.n <= MAX_CHOICES:
        raise InvalidRequest("n", f"n is {request.n}: choose 1 to {MAX_CHOICES}")
    _check_ids("prompt", request.prompt_token_ids, model.vocab_size)
    _check_ids("stop_token_ids", request.stop_token_ids, model.vocab_size)
    _check_ids("logit_bias", request.sampling.logit_bias, model.vocab_size)
    _check_ids("allowed_token_ids", request.sampling.allowed_token_ids, model.vocab_size)
    for word in request.sampling.bad_words:
        _check_ids("bad_words", word, model.vocab_size)
    if request.rank is not None and request.rank not in ranks:
        raise InvalidRequest(RANK_KEY, f"{RANK_KEY} is {request.rank}: valid ranks are {_spell(ranks)}")
    return room if request.max_tokens is None else min(request.max_tokens, room)


def _check_ids(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(param, f"{param} has token id {token_id}: valid ids are 0 to {vocab_size - 1}")


def _spell(ranks: Sequence[int]) -> str:
    ordered = sorted(ranks)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered)) or "none"
