"""A sequence: what is known, when it ends, what it reports about its prompt."""

from __future__ import annotations

import pytest

from engine.batch import Scheduled
from engine.request import FinishReason, Request, StopConditions, TokenLogprobs, Usage
from engine.sequence import Sequence

EOS = 2


def sequence(
    *output: int, stop: StopConditions | None = None, max_total_tokens: int = 100, prompt_logprobs: int | None = None
) -> Sequence:
    request = Request(
        "r", (10, 11, 12), stop=stop or StopConditions(), generated_token_ids=output, prompt_logprobs=prompt_logprobs
    )
    return Sequence(request, arrival=0, max_total_tokens=max_total_tokens, eos_token_ids=(EOS,))


def test_earlier_output_counts_as_output() -> None:
    subject = sequence(20, 21)
    assert subject.token_ids == [10, 11, 12, 20, 21]
    assert (subject.num_tokens, subject.num_prompt_tokens, subject.num_output_tokens) == (5, 3, 2)
    assert subject.usage == Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=0)


@pytest.mark.parametrize(
    ("output", "stop", "expected"),
    [
        ((20,), StopConditions(), None),
        ((EOS,), StopConditions(), FinishReason.STOP),
        ((EOS,), StopConditions(ignore_eos=True), None),
        ((EOS,), StopConditions(ignore_eos=True, stop_token_ids=frozenset({EOS})), FinishReason.STOP),
        ((20,), StopConditions(stop_token_ids=frozenset({20})), FinishReason.STOP),
        ((20, 21), StopConditions(stop_token_ids=frozenset({20})), None),
        ((20, EOS), StopConditions(min_tokens=2), None),
        ((20, 21, EOS), StopConditions(min_tokens=2), FinishReason.STOP),
        ((), StopConditions(stop_token_ids=frozenset({12})), None),
    ],
)
def test_stopping(output: tuple[int, ...], stop: StopConditions, expected: FinishReason | None) -> None:
    subject = sequence(*output, stop=stop)
    assert subject.finish_reason is expected
    assert subject.stop_token_id == (output[-1] if expected else None)


def test_length() -> None:
    assert sequence(20, max_total_tokens=5).finish_reason is None
    assert sequence(20, max_total_tokens=4).finish_reason is FinishReason.LENGTH
    assert sequence(20, EOS, max_total_tokens=5).finish_reason is FinishReason.STOP, "a stop token says more"


def test_a_token_follows_when_all_is_computed_and_more_may_come() -> None:
    assert Scheduled(sequence(), 3).samples
    assert not Scheduled(sequence(), 2).samples
    assert not Scheduled(sequence(max_total_tokens=3), 3).samples, "scoring samples nothing"


def test_the_prompt_is_reported_once_with_its_logprobs() -> None:
    subject = sequence(prompt_logprobs=0)
    entries = (TokenLogprobs(11, -1.0, 1), TokenLogprobs(12, -2.0, 3))
    subject.add_prompt_logprobs(entries[:1])
    subject.add_prompt_logprobs(entries[1:])
    info = subject.report_prompt()
    assert info is not None
    assert info.logprobs == (TokenLogprobs(10, None, 0), *entries)
    assert subject.report_prompt() is None
    assert not subject.wants_prompt_logprobs
    subject.add_prompt_logprobs(entries)  # recomputed after a preemption: nobody wants them again


def test_a_restart_collects_prompt_logprobs_anew() -> None:
    subject = sequence(prompt_logprobs=0)
    subject.num_computed = 2
    subject.add_prompt_logprobs((TokenLogprobs(11, -1.0, 1),))
    subject.restart()
    assert (subject.num_computed, subject.num_preemptions) == (0, 1)
    entries = (TokenLogprobs(11, -1.0, 1), TokenLogprobs(12, -2.0, 3))
    subject.add_prompt_logprobs(entries)
    info = subject.report_prompt()
    assert info is not None
    assert info.logprobs[1:] == entries


def test_a_prompt_of_one_token_has_one_entry() -> None:
    subject = Sequence(Request("r", (10,), prompt_logprobs=1), arrival=0, max_total_tokens=9)
    info = subject.report_prompt()
    assert info is not None
    assert info.logprobs == (TokenLogprobs(10, None, 0),)
