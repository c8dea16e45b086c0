"""What goes into the engine and what comes out of it; frozen on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How each next token is chosen. Defaults sample from the model's own distribution.

    The noise of a token is a function of (seed, position) only; see `engine.runner.sampler`.
    """

    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0  # whoever builds the Request draws one when the caller gave none
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()  # empty allows all
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class StopConditions:
    """When a generation ends, counted in generated tokens."""

    max_tokens: int | None = None  # None: what is left of the context
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False


class ConstraintKind(Enum):
    """Named as the contract names the fields of Constraint."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the answer's text must be in; `text` is the schema, the regex or the grammar."""

    kind: ConstraintKind
    text: str = ""
    choices: tuple[str, ...] = ()


class PoolingMethod(Enum):
    """How the hidden states of a prompt's tokens become one vector."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Pooling:
    """Asks for a vector instead of tokens; `dimensions` are kept before it is scaled to length 1, None keeps all."""

    method: PoolingMethod
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to run.

    `generated_token_ids` were generated elsewhere before (the rank was lost): the engine goes on
    after them; they count as output for penalties, seeds, limits and usage.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    stop: StopConditions = StopConditions()
    generated_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # alternatives per generated token; 0: the chosen one only
    prompt_logprobs: int | None = None
    priority: int = 0  # lower runs earlier
    cache_salt: str = ""
    constraint: Constraint | None = None
    pooling: Pooling | None = None  # with stop.max_tokens 0


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"  # the engine's own fault; `TokenOutput.error` says what


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One position: the token that stands there and its most likely rivals, best first.

    Natural logarithms of the model's own distribution, before temperature, penalties and filters.
    `logprob` is None for the first prompt token, which nothing predicts.
    """

    token_id: int
    logprob: float | None
    rank: int  # 1 is the most likely
    top_token_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptInfo:
    """What became of a prompt; comes with the first output of its request."""

    num_tokens: int
    cached_tokens: int
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a finished request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class TokenOutput(NamedTuple):
    """What one step brought for one request. Token ids are deltas, never cumulative.

    A tuple because there is one for each sequence and step: a frozen dataclass takes four times as long to make.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: PromptInfo | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    usage: Usage | None = None  # with finish_reason
    error: str = ""  # with FinishReason.ERROR
    error_field: str = ""  # what the caller has to change, when it is not the engine's own fault
    embedding: tuple[float, ...] | None = None  # with the last output, when pooling was asked for


class PlainOutput:
    """A TokenOutput with tokens and nothing else, as nearly all are: it takes a third of the time to make."""

    __slots__ = ("request_id", "token_ids")

    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: PromptInfo | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    usage: Usage | None = None
    error = ""
    error_field = ""
    embedding: tuple[float, ...] | None = None

    def __init__(self, request_id: str, token_ids: tuple[int, ...]) -> None:
        self.request_id = request_id
        self.token_ids = token_ids


Output = TokenOutput | PlainOutput
