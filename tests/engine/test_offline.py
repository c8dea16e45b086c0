"""The engine as a library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.offline import Answer, OfflineEngine
from engine.request import FinishReason, Request, SamplingParams, StopConditions
from tests.support.naive_model import NaiveModel
from tests.support.tiny_model import TINY_CONFIG, tiny_state, write_huggingface_directory

GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfflineEngine]:
    model = write_huggingface_directory(tmp_path_factory.mktemp("model") / "tiny")
    config = EngineConfig(
        model, dtype="float32", max_model_len=256, num_blocks=64, max_num_seqs=4, max_queued=4, num_threads=1
    )
    with OfflineEngine(config) as engine:
        yield engine


def test_answers_come_in_order_and_are_those_of_full_recomputation(engine: OfflineEngine) -> None:
    naive = NaiveModel(TINY_CONFIG, tiny_state())
    prompts = [[number, *range(1, 2 + number % 7)] for number in range(20)]  # more than run and wait at a time
    stop = StopConditions(max_tokens=6, ignore_eos=True)
    answers = list(engine.generate(prompts, GREEDY, stop))
    assert [answer.request_id for answer in answers] == [str(number) for number in range(20)]
    assert [answer.token_ids for answer in answers] == [naive.generate(prompt, 6) for prompt in prompts]
    assert {answer.finish_reason for answer in answers} == {FinishReason.LENGTH}


def test_each_prompt_has_its_own_seed(engine: OfflineEngine) -> None:
    stop = StopConditions(max_tokens=8, ignore_eos=True)
    drawn = [answer.token_ids for answer in engine.generate([[1, 2]] * 3, SamplingParams(seed=5), stop)]
    assert len({tuple(token_ids) for token_ids in drawn}) == 3
    (alone,) = engine.generate([[1, 2]], SamplingParams(seed=6), stop)
    assert alone.token_ids == drawn[1]


def test_one_that_cannot_run_is_answered_and_the_others_go_on(engine: OfflineEngine) -> None:
    stop = StopConditions(max_tokens=2, ignore_eos=True)
    good, bad, long = engine.generate([[1], [10**6], [1] * 300], GREEDY, stop)
    assert len(good.token_ids) == 2
    assert (bad.finish_reason, long.finish_reason) == (FinishReason.ERROR, FinishReason.ERROR)
    assert "prompt_token_ids" in bad.error
    assert "the context is 256" in long.error


def test_requests_have_logprobs_and_are_read_as_there_is_room(engine: OfflineEngine) -> None:
    taken = 0

    def requests() -> Iterator[Request]:
        nonlocal taken
        for number in range(50):
            taken += 1
            stop = StopConditions(max_tokens=2, ignore_eos=True)
            yield Request(f"r{number}", (1, 2, 3), GREEDY, stop, logprobs=1, prompt_logprobs=1)

    answers = engine.run(requests())
    first = next(answers)
    assert taken < 50
    assert [len(first.logprobs), len(first.prompt_logprobs)] == [2, 3]
    assert [answer.request_id for answer in answers] == [f"r{number}" for number in range(1, 50)]


def test_an_abandoned_run_leaves_nothing_behind(engine: OfflineEngine) -> None:
    answers = engine.generate([[1]] * 6, GREEDY, StopConditions(max_tokens=200, ignore_eos=True))
    assert isinstance(next(answers), Answer)
    answers.close()  # type: ignore[attr-defined]  # a generator
    assert engine.built.core.num_live == 0
    assert engine.built.core.load().free_blocks == engine.built.num_blocks
    engine.built.core.check()


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    model = write_huggingface_directory(tmp_path / "tiny")
    engine = OfflineEngine(EngineConfig(model, dtype="float32", max_model_len=64, num_blocks=8, num_threads=1))
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        engine.generate([[1]])
