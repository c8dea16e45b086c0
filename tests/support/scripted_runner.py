"""A runner without a model: its tokens are a function of what was really computed, so that lost work shows."""

from __future__ import annotations

import threading
from collections.abc import Callable

from engine.batch import Batch, Sampled, StepToken
from engine.request import TokenLogprobs
from engine.sequence import Sequence

VOCAB_SIZE = 1000


def next_token(token_ids: list[int]) -> int:
    """The script's answer to a context: a token id from 1 to 999, never 0, which serves as end of sequence."""
    value = 7
    for token_id in token_ids:
        value = (value * 31 + token_id + 1) % 1_000_003
    return 1 + value % (VOCAB_SIZE - 1)


def continuation(prompt_token_ids: tuple[int, ...], num_tokens: int) -> list[int]:
    """What an undisturbed generation yields."""
    token_ids = list(prompt_token_ids)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt_token_ids) :]


class ScriptedRunner:
    """Writes tokens into blocks as a model writes keys and values, and answers from the blocks alone.

    A block that was handed to two sequences, or a prefix that was not computed, changes the answer.
    `choose` replaces the script; `on_execute` is called before each step and may raise or wait.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._slots = [-1] * (num_blocks * block_size)
        self._block_size = block_size
        self.choose: Callable[[Sequence], int] | None = None
        self.on_execute: Callable[[Batch], None] | None = None
        self.batches: list[list[tuple[str, int, int]]] = []  # (request id, first position, number of tokens)
        self.forgotten: list[str] = []
        self.threads: set[int] = set()

    def execute(self, batch: Batch) -> list[StepToken]:
        self.threads.add(threading.get_ident())
        if self.on_execute is not None:
            self.on_execute(batch)
        record = [
            (item.sequence.request_id, item.sequence.num_computed, item.num_new_tokens) for item in batch.scheduled
        ]
        self.batches.append(record)
        for item in batch.scheduled:
            self._write(item.sequence, item.num_new_tokens)
        return [
            StepToken(
                sampled=self._sample(item.sequence) if item.samples else None,
                prompt_logprobs=self._score(item.sequence, item.num_new_tokens),
            )
            for item in batch.scheduled
        ]

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)

    def _slot(self, sequence: Sequence, position: int) -> int:
        block_id = sequence.block_table.block_ids[position // self._block_size]
        return block_id * self._block_size + position % self._block_size

    def _write(self, sequence: Sequence, num_new_tokens: int) -> None:
        for position in range(sequence.num_computed, sequence.num_computed + num_new_tokens):
            self._slots[self._slot(sequence, position)] = sequence.token_ids[position]

    def _sample(self, sequence: Sequence) -> Sampled:
        context = [self._slots[self._slot(sequence, position)] for position in range(sequence.num_tokens)]
        token_id = next_token(context) if self.choose is None else self.choose(sequence)
        asked = sequence.request.logprobs is not None
        return Sampled(token_id, TokenLogprobs(token_id, -0.5, 1) if asked else None)

    def _score(self, sequence: Sequence, num_new_tokens: int) -> tuple[TokenLogprobs, ...]:
        if not sequence.wants_prompt_logprobs:
            return ()
        last = min(sequence.num_computed + num_new_tokens, sequence.num_prompt_tokens - 1)
        return tuple(
            TokenLogprobs(sequence.token_ids[position + 1], -1.0, 1) for position in range(sequence.num_computed, last)
        )
