"""Repetition, presence and frequency penalties from counts that grow with the output."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from engine.sequence import Sequence
from engine.transfer import upload


class PenaltyTable:
    """Token counts of the sequences that use penalties; a sequence holds a row from first use to `forget`.

    A token of the output is counted once, when the sequence is next sampled. Preemption does not matter:
    known tokens stay known.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)  # of the output
        self._seen = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)  # prompt or output
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._num_counted: dict[str, int] = {}

    def apply(self, logits: Tensor, sequences: Rows[Sequence]) -> Tensor:
        """logits: [R, V] float32, one row per sequence. Returns the penalised logits."""
        rows = upload([self._update(sequence) for sequence in sequences], self._device)
        counts, seen = self._counts[rows], self._seen[rows]
        repetition, presence, frequency = (
            upload(values, self._device)[:, None]
            for values in zip(
                *(
                    (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
                    for params in (sequence.request.sampling for sequence in sequences)
                ),
                strict=True,
            )
        )
        logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
        return logits - frequency * counts - presence * (counts > 0)

    def forget(self, request_id: str) -> None:
        """The sequence ended; its row is used again. Unknown ids are ignored."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            del self._num_counted[request_id]
            self._free.append(row)

    def _update(self, sequence: Sequence) -> int:
        """Counts what the sequence generated since it was last seen. Returns its row."""
        request_id = sequence.request.request_id
        if request_id not in self._rows:
            self._rows[request_id] = self._take_row(sequence)
            self._num_counted[request_id] = sequence.num_prompt_tokens
        row = self._rows[request_id]
        new = sequence.token_ids[self._num_counted[request_id] :]
        if new:
            ids = upload(new, self._device)
            self._counts[row].index_put_((ids,), torch.ones_like(ids, dtype=torch.int32), accumulate=True)
            self._seen[row, ids] = True
            self._num_counted[request_id] = sequence.num_tokens
        return row

    def _take_row(self, sequence: Sequence) -> int:
        if not self._free:
            size = len(self._counts)
            added = max(4, size)
            self._counts = torch.cat((self._counts, self._counts.new_zeros((added, self._vocab_size))))
            self._seen = torch.cat((self._seen, self._seen.new_zeros((added, self._vocab_size))))
            self._free = list(range(size, size + added))
        row = self._free.pop()
        self._counts[row].zero_()
        self._seen[row].zero_()
        self._seen[row, upload(sequence.token_ids[: sequence.num_prompt_tokens], self._device)] = True
        return row
