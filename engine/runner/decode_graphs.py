"""Decode steps as recordings: a batch is padded to the next size that was recorded, and replayed.

A decode step launches some hundred kernels per token that take less time than launching them; replaying a CUDA graph
launches them all at once. The graphs hold the forward pass; logits and sampling follow outside, over the real rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.backend import AttentionBackend, AttentionBatch
from engine.runner.batch_tensors import BatchTensors

Replay = Callable[[], Tensor]


class PaddedAttention(AttentionBackend, Protocol):
    """A backend whose decode steps keep the addresses of their metadata."""

    def plan_padded(self, batch: AttentionBatch, num_rows: int) -> None:
        """As `plan`, for sequences with one new token each, and rows that nobody looks at up to `num_rows`."""
        ...


class DecodeModel(Protocol):
    """The part of the transformer that is recorded."""

    @property
    def device(self) -> torch.device: ...

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionBackend) -> Tensor: ...


class Recorder(Protocol):
    """Runs work once and returns what repeats it on the same memory."""

    def record(self, work: Replay) -> Replay: ...


class DecodeGraphs:
    """One recording per bucket. Nothing is recorded until `capture`, and nothing taken. Belongs to one thread."""

    def __init__(
        self, model: DecodeModel, attention: PaddedAttention, recorder: Recorder, buckets: tuple[int, ...]
    ) -> None:
        """`buckets` are batch sizes, ascending."""
        self._model = model
        self._attention = attention
        self._recorder = recorder
        self._buckets = buckets
        self._replays: dict[int, Replay] = {}
        # The recordings read these, wherever the step's own tensors lie.
        self._token_ids = torch.zeros(buckets[-1], dtype=torch.int64, device=model.device)
        self._positions = torch.zeros(buckets[-1], dtype=torch.int64, device=model.device)

    @property
    def sizes_text(self) -> str:
        """The batch sizes, for a log line."""
        return ", ".join(map(str, self._buckets))

    def capture(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Records every bucket; `progress` is called with buckets recorded and their number.

        The largest first: the recordings share their memory, and the smaller ones fit into what the first took.
        """
        nobody = AttentionBatch(
            num_decodes=0,
            query_lens=(),
            context_lens=(),
            slots=self._token_ids[:0],
            block_tables=self._token_ids[:0].view(0, 1),
        )
        for done, size in enumerate(reversed(self._buckets)):
            progress(done, len(self._buckets))
            with torch.inference_mode():
                self._attention.plan_padded(nobody, size)
                self._replays[size] = self._recorder.record(lambda size=size: self._forward(size))  # type: ignore[misc]
        progress(len(self._buckets), len(self._buckets))

    def takes(self, tensors: BatchTensors) -> bool:
        """Whether the step is one of decoding only, and small enough."""
        attention = tensors.attention
        num_sequences = len(attention.query_lens)
        return bool(self._replays) and attention.num_decodes == num_sequences <= self._buckets[-1]

    def forward(self, tensors: BatchTensors) -> Tensor:
        """Plans and computes a step that `takes` said yes to. Returns [T, H], valid until the next call."""
        num_rows = len(tensors.attention.query_lens)
        size = bucket_of(num_rows, self._buckets)
        self._token_ids[:num_rows].copy_(tensors.token_ids)
        self._positions[:num_rows].copy_(tensors.positions)
        if num_rows < size:
            self._token_ids[num_rows:size].zero_()
            self._positions[num_rows:size].zero_()
        self._attention.plan_padded(tensors.attention, size)
        return self._replays[size]()[:num_rows]

    def _forward(self, size: int) -> Tensor:
        return self._model.forward(self._token_ids[:size], self._positions[:size], self._attention)


def decode_buckets(max_num_seqs: int, max_capture_size: int) -> tuple[int, ...]:
    """Batch sizes to record: 1, 2, 4, 8, then powers of two and the middles between them, up to the smaller limit.

    From 8 on a step is at most half as large again as its batch; each bucket costs memory and start-up time.
    """
    largest = min(max_num_seqs, max_capture_size)
    sizes = {1, 2, 4, 8, largest}
    power = 16
    while power < largest:
        sizes |= {power, power + power // 2}
        power *= 2
    return tuple(sorted(size for size in sizes if size <= largest))


def bucket_of(num_rows: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds so many rows; there must be one."""
    return buckets[bisect_left(buckets, num_rows)]
