"""Steps in which every sequence computes one token: their rows stay in memory, and native code computes all of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.batch import Batch, Scheduled
from engine.build import BuiltEngine, build_engine
from engine.config import EngineConfig
from engine.request import Request, SamplingParams, StopConditions
from engine.runner.decode_rows import DecodeRows
from engine.sequence import Sequence
from tests.support.native_kernels import instruction_sets, native_library
from tests.support.tiny_model import write_huggingface_directory

SPECIAL = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), -float("nan"), 1e-45, -1e-45, 3.4e38, -3.4e38)


def _first_best(numbers: torch.Tensor) -> int:
    best: int = native_library().muster_first_best(numbers.contiguous().data_ptr(), len(numbers))
    return best


@pytest.mark.parametrize("size", [1, 2, 7, 31, 1023, 1024, 1025, 2048, 49_152, 50_001])
def test_the_first_of_the_largest_is_torchs(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    for _ in range(20):
        numbers = torch.randn(size, generator=generator)
        assert _first_best(numbers) == int(numbers.max(dim=-1).indices)


@pytest.mark.parametrize("seed", range(20))
def test_ties_zeros_infinities_and_what_is_no_number(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        size = chance.choice((1, 2, 5, 40, 1500))
        values = [*chance.sample(SPECIAL, chance.randint(1, 3)), chance.gauss(0, 1)]
        numbers = torch.tensor([chance.choice(values) for _ in range(size)])
        found = _first_best(numbers)
        absent = torch.isnan(numbers)
        # The rule itself, written down once more: numpy's and torch's own answers for two zeros differ by version.
        wanted = absent if absent.any() else numbers == numbers.max()
        assert found == int(wanted.nonzero()[0])


def _sequence(number: int, length: int, **sampling: Any) -> Sequence:
    request = Request(
        f"r{number}", tuple(range(length)), sampling=SamplingParams(**sampling), stop=StopConditions(1 << 30)
    )
    return Sequence(request, arrival=number, max_total_tokens=1 << 16)


class _Oracle:
    """Sequences that come, go, change places, lose their blocks and get others; and what their rows must say."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.sequences: list[Sequence] = []
        self.num_asked = 0
        self.rows = DecodeRows(self._takes_best)

    def _takes_best(self, sequence: Sequence) -> bool:
        self.num_asked += 1
        return sequence.request.sampling.greedy

    def change(self) -> None:
        chance = self.chance
        for sequence in self.sequences:
            if chance.random() < 0.05:  # preempted and back: other blocks, as many as before or not
                sequence.block_table.block_ids = []
                self._cover(sequence)
            sequence.token_ids.append(chance.randrange(1000))
            sequence.num_computed = sequence.num_tokens - 1
            self._cover(sequence)
        if chance.random() < 0.3:
            greedy = chance.random() < 0.8
            new = _sequence(chance.randrange(1 << 30), chance.randint(1, 600), temperature=0.0 if greedy else 1.0)
            new.num_computed = new.num_tokens - 1
            self._cover(new)
            self.sequences.insert(chance.randint(0, len(self.sequences)), new)
        if self.sequences and chance.random() < 0.2:
            self.sequences.pop(chance.randrange(len(self.sequences)))
        if chance.random() < 0.05:
            chance.shuffle(self.sequences)

    def _cover(self, sequence: Sequence) -> None:
        missing = -(-sequence.num_tokens // 16) - len(sequence.block_table.block_ids)
        sequence.block_table.block_ids += [self.chance.randrange(1 << 20) for _ in range(missing)]

    def batch(self) -> Batch:
        return Batch(0, tuple(Scheduled(sequence, 1) for sequence in self.sequences))

    def other_batch(self) -> Batch:
        """One that is none for rows: somebody's chunk of a prompt, or a part of one that gives no token."""
        other = Scheduled(_sequence(0, 50), self.chance.choice((1, 20, 50)))
        scheduled = list(self.batch().scheduled)
        scheduled.insert(self.chance.randint(0, len(scheduled)), other)
        return Batch(0, tuple(scheduled))

    def check(self) -> None:
        rows, sequences = self.rows, self.sequences
        assert rows.num_rows == len(sequences)
        assert rows.sequences == sequences
        assert rows.all_take_best == all(sequence.request.sampling.greedy for sequence in sequences)
        assert list(rows.token_ids[: len(sequences)]) == [sequence.token_ids[-1] for sequence in sequences]
        assert list(rows.positions[: len(sequences)]) == [sequence.num_computed for sequence in sequences]
        for table, sequence in zip(rows.block_tables, sequences, strict=False):
            block_ids = sequence.block_table.block_ids
            np.testing.assert_array_equal(table[: len(block_ids)], block_ids)
        assert len(rows.best) >= len(sequences)


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_what_they_would_be_if_written_anew(seed: int) -> None:
    oracle = _Oracle(random.Random(seed))
    for _ in range(400):
        oracle.change()
        if oracle.chance.random() < 0.15:
            assert not oracle.rows.take(oracle.other_batch())
        if oracle.sequences:
            assert oracle.rows.take(oracle.batch())
            oracle.check()


def test_who_stays_is_asked_once() -> None:
    oracle = _Oracle(random.Random(1))
    oracle.sequences = [_sequence(number, 10, temperature=0.0) for number in range(5)]
    for _ in range(30):
        for sequence in oracle.sequences:
            sequence.token_ids.append(3)
            sequence.num_computed = sequence.num_tokens - 1
        assert oracle.rows.take(oracle.batch())
    assert oracle.num_asked == 5


@pytest.mark.parametrize(
    "changes", [{"prompt_logprobs": 1}, {"stop": StopConditions(max_tokens=0)}], ids=["prompt_logprobs", "no tokens"]
)
def test_who_wants_more_than_tokens_is_left_to_the_long_way(changes: dict[str, Any]) -> None:
    request = Request("r", (1,), **changes)
    sequence = Sequence(request, arrival=0, max_total_tokens=100)
    sequence.block_table.block_ids = [3]
    assert not DecodeRows(lambda _: True).take(Batch(0, (Scheduled(sequence, 1),)))


def _requests(seed: int) -> list[Request]:
    chance = random.Random(seed)
    return [
        Request(
            str(index),
            tuple(chance.randrange(3, 250) for _ in range(chance.randint(1, 70))),
            sampling=SamplingParams(
                temperature=chance.choice((0.0, 0.0, 0.0, 0.8)),
                presence_penalty=chance.choice((0.0, 0.0, 0.5)),
                seed=index,
            ),
            stop=StopConditions(max_tokens=chance.randint(1, 40), ignore_eos=True),
            logprobs=chance.choice((None, None, None, 2)),
        )
        for index in range(24)
    ]


def _answers(built: BuiltEngine, requests: list[Request]) -> dict[str, list[Any]]:
    """All tokens with what is told of them; requests come while others are answered."""
    answers: dict[str, list[Any]] = {request.request_id: [] for request in requests}
    waiting = list(requests)
    while waiting or built.core.has_work:
        for _ in range(min(2, len(waiting))):
            built.core.add(waiting.pop())
        for output in built.core.step().outputs:
            answers[output.request_id] += zip(output.token_ids, output.logprobs or [None] * 9, strict=False)
        built.core.check()
    return answers


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_huggingface_directory(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("num_blocks", [64, 20])
def test_the_short_way_and_the_long_one_give_the_same_bits(
    isa: str, num_blocks: int, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty blocks are too few for all: sequences are preempted."""
    monkeypatch.setenv("MUSTER_CPU_ISA", isa)
    found = []
    for short in (True, False):
        built = build_engine(
            EngineConfig(tiny_directory, num_threads=2, num_blocks=num_blocks, max_model_len=128, max_num_seqs=6)
        )
        runner: Any = built.core._runner
        assert runner._plain_decode is not None
        num_short = 0
        if short:
            execute = runner._plain_decode.execute

            def counted(batch: Batch, execute: Any = execute) -> Any:
                nonlocal num_short
                tokens = execute(batch)
                num_short += tokens is not None
                return tokens

            monkeypatch.setattr(runner._plain_decode, "execute", counted)
        else:
            runner._plain_decode = None
        found.append(_answers(built, _requests(num_blocks)))
        assert (num_short > 20) == short
    assert found[0] == found[1]
