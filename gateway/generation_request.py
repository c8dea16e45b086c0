"""What the text front ends ask of a generation, and the events it answers with.

Everything here is validated: past this line ids are in the vocabulary, numbers in range, and the prompt fits the
context. HTTP and gRPC front ends build these values; `gateway.generation` consumes the request and yields the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gateway.reasoning import ReasoningFormat


@dataclass(frozen=True, slots=True)
class Sampling:
    """How each next token is chosen; `None` means the checkpoint's recommendation, else the contract's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()


class ConstraintKind(Enum):
    """Named as the contract names the fields of Constraint."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the answer must be in: `text` is the schema, the regex or the grammar.

    `param` is the client's own field, for when the engine cannot compile what is in it.
    """

    kind: ConstraintKind
    text: str = ""
    choices: tuple[str, ...] = ()
    param: str = ""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt with `n` choices.

    `max_tokens` `None` means what is left of the context; 0 scores the prompt and generates nothing.
    `rank` is a global rank the caller insists on; `affinity` groups requests that profit from the same prefix cache.
    With `reasoning`, thoughts are told apart from the text, and stop strings look at the text alone.
    `kept_token_ids` are special tokens that the text keeps, because its reader looks for them.
    Deltas between a choice's first and last have at least `stream_interval` tokens.
    What is not `streamed` is read at its end: nobody looks at the deltas before.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    stop_strings: tuple[str, ...] = ()
    include_stop_string: bool = False
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    rank: int | None = None
    priority: int = 0
    cache_salt: str = ""
    affinity: str | None = None
    timeout_s: float | None = None
    traceparent: str = ""
    constraint: Constraint | None = None
    reasoning: ReasoningFormat | None = None
    kept_token_ids: frozenset[int] = frozenset()
    stream_interval: int = 1
    streamed: bool = True


class FinishReason(Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One position: the token there, its natural-log probability (`None` for the first prompt token), its rank
    (1 = likeliest) and its likeliest rivals as (token id, logprob), best first."""

    token_id: int
    logprob: float | None
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptReport:
    """Comes once, first: the prompt was accepted and computed."""

    num_tokens: int
    cached_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """News of one choice. Tokens wait for the text they are part of, so only the last delta may have no text; it has
    `finish_reason`, and `stop_reason` names the stop string or stop token id that ended the choice. `reasoning` is
    what comes before the text; `num_reasoning_tokens` of the tokens are thoughts and their tags. `pieces`, if there are
    any, are the text token by token: several tokens may have waited to be told."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    reasoning: str = ""
    num_reasoning_tokens: int = 0
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationUsage:
    """Comes once, last. The prompt is counted once, completion tokens, thoughts among them, are summed
    over the choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


GenerationEvent = PromptReport | ChoiceDelta | GenerationUsage
