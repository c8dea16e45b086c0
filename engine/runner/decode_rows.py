"""What decode steps compute, in memory that stays from step to step."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from engine.batch import Batch
from engine.sequence import Sequence

_MIN_ROWS = 8
_MIN_WIDTH = 32


class _Row:
    """Whose row it is, and which of its blocks lie in the table."""

    __slots__ = ("block_ids", "num_blocks", "sequence", "takes_best")

    def __init__(self) -> None:
        self.sequence: Sequence | None = None
        self.takes_best = False
        self.block_ids: list[int] | None = None
        self.num_blocks = 0


class DecodeRows:
    """A row for each sequence of the batch, in its order; native code reads them by address.

    A step adds a token to each sequence and now and then a block, so most of what was written before is still right:
    a row is written anew when another sequence has come into its place, its table when its sequence has other blocks.
    A sequence that left is held until another takes its row. Belongs to one thread.
    """

    def __init__(self, takes_best: Callable[[Sequence], bool]) -> None:
        """`takes_best`: whether a sequence's next token is always the one with the largest logit; asked once for each
        time that it comes into a row."""
        self._takes_best = takes_best
        self._rows: list[_Row] = []
        self.num_rows = 0  # of the step; there may be more in memory
        self.all_take_best = False
        self.allocation = 0  # grows when the arrays below have moved
        self.token_ids = array("q")  # [rows] each sequence's last token, the one to be computed
        self.positions = array("q")  # [rows] its position
        self.block_tables = np.zeros((0, _MIN_WIDTH), dtype=np.int32)  # [rows, width] what is behind a table is old
        self.best = array("q")  # [rows] for the answers

    @property
    def sequences(self) -> list[Sequence]:
        """Of the step, in its order."""
        return [row.sequence for row in self._rows[: self.num_rows] if row.sequence is not None]

    def take(self, batch: Batch) -> bool:
        """Whether the batch is nothing but sequences that each compute one token to get the next; its rows are here
        then."""
        scheduled = batch.scheduled
        if len(scheduled) > len(self._rows):
            self._add_rows(max(_MIN_ROWS, 2 * len(scheduled)))
        rows, token_ids, positions = self._rows, self.token_ids, self.positions
        changed = len(scheduled) != self.num_rows
        for index, item in enumerate(scheduled):
            sequence, row = item.sequence, rows[index]
            if item.num_new_tokens != 1 or not item.samples:
                return False
            if row.sequence is not sequence:
                if not _only_continues(sequence):
                    return False
                row.sequence, row.takes_best, row.block_ids = sequence, self._takes_best(sequence), None
                self.num_rows = 0
                changed = True
            token_ids[index] = sequence.token_ids[-1]
            positions[index] = sequence.num_computed
            block_ids = sequence.block_table.block_ids
            if row.block_ids is not block_ids or row.num_blocks != len(block_ids):
                self._write_table(index, block_ids)
        if changed:
            self.num_rows = len(scheduled)
            self.all_take_best = all(row.takes_best for row in rows[: len(scheduled)])
        return True

    def _write_table(self, index: int, block_ids: list[int]) -> None:
        width = self.block_tables.shape[1]
        if len(block_ids) > width:
            self._shape_tables(len(self._rows), max(2 * width, len(block_ids)))
        row = self._rows[index]
        begin = row.num_blocks if row.block_ids is block_ids else 0  # tables only grow at their end
        self.block_tables[index, begin : len(block_ids)] = block_ids[begin:]
        row.block_ids, row.num_blocks = block_ids, len(block_ids)

    def _add_rows(self, num_rows: int) -> None:
        zeros = bytes(self.positions.itemsize * (num_rows - len(self._rows)))
        self._rows += [_Row() for _ in range(num_rows - len(self._rows))]
        self.token_ids, self.positions, self.best = (
            numbers + array("q", zeros) for numbers in (self.token_ids, self.positions, self.best)
        )
        self._shape_tables(num_rows, self.block_tables.shape[1])

    def _shape_tables(self, num_rows: int, width: int) -> None:
        """What they hold stays."""
        before = self.block_tables
        self.block_tables = np.zeros((num_rows, width), dtype=np.int32)
        self.block_tables[: before.shape[0], : before.shape[1]] = before
        self.allocation += 1


def _only_continues(sequence: Sequence) -> bool:
    """Whether a sequence wants tokens and nothing else of what is computed."""
    request = sequence.request
    return not sequence.wants_prompt_logprobs and request.pooling is None and request.stop.max_tokens != 0
