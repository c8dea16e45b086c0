"""One step's work and its result: what the scheduler hands to the runner and gets back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.request import TokenLogprobs
from engine.sequence import Sequence


class Scheduled(NamedTuple):
    """One sequence's share of a step. A tuple, as the next two are: there is one for each sequence and step.

    The tokens [sequence.num_computed, sequence.num_computed + num_new_tokens) are computed; the block
    table covers them. `samples` is valid until the step is committed.
    """

    sequence: Sequence
    num_new_tokens: int

    @property
    def samples(self) -> bool:
        """Whether a token follows the last computed one: all known tokens are computed then, and more may come."""
        sequence = self.sequence
        caught_up = sequence.num_computed + self.num_new_tokens == len(sequence.token_ids)
        return caught_up and sequence.finish_reason is None


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one step, each once; those that decode come first."""

    step: int
    scheduled: tuple[Scheduled, ...]


class Sampled(NamedTuple):
    """A chosen token; with logprobs when `request.logprobs` is not None."""

    token_id: int
    logprobs: TokenLogprobs | None = None


class StepToken(NamedTuple):
    """What the runner found for one `Scheduled`.

    `sampled` is None exactly when `scheduled.samples` is false. `prompt_logprobs` has one entry for
    each computed position p with p + 1 < num_prompt_tokens, about the token at p + 1, in order, when
    `sequence.wants_prompt_logprobs`; surplus entries are ignored. `embedding` comes with the step that completes a
    prompt that is pooled.
    """

    sampled: Sampled | None
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: tuple[float, ...] | None = None


class Runner(Protocol):
    """Computes batches: the model in production, a script in tests."""

    def execute(self, batch: Batch) -> list[StepToken]:
        """Computes one step; one StepToken per `batch.scheduled`, in order."""

    def forget(self, request_id: str) -> None:
        """Drops what is kept for a sequence that ended. Ignores ids it does not know; never raises."""
