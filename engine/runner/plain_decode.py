"""The short way of a step in which every sequence computes one token to get the next, as in most steps."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from engine.batch import Batch, Sampled, StepToken
from engine.runner.decode_rows import DecodeRows
from engine.runner.sampler import Sampler


class Decoder(Protocol):
    """A model that computes such a step with its own attention."""

    def decode(self, rows: DecodeRows) -> Tensor:
        """Returns [R, V] logits, valid until the next call."""
        ...

    def decode_best(self, rows: DecodeRows) -> None:
        """Writes to `rows.best` the lowest index of each row's largest logit."""
        ...


class PlainDecode:
    """Without tensors where nobody wants logits: next to a small model's pass, making some takes long, and each call
    into torch gives Python's lock away. Belongs to one thread."""

    def __init__(self, decoder: Decoder, sampler: Sampler) -> None:
        self._decoder = decoder
        self._sampler = sampler
        self._rows = DecodeRows(sampler.takes_best)

    def execute(self, batch: Batch) -> list[StepToken] | None:
        """One result per scheduled sequence, in order; None, and nothing was computed, for any other step."""
        rows = self._rows
        if not rows.take(batch):
            return None
        if rows.all_take_best:
            self._decoder.decode_best(rows)
            return [StepToken(Sampled(token_id)) for token_id in rows.best[: rows.num_rows]]
        sequences = rows.sequences
        with torch.inference_mode():
            self._sampler.prepare(sequences)
            logits = self._decoder.decode(rows)
            return [StepToken(sampled) for sampled in self._sampler.sample(logits, sequences)]
