"""Hidden states of a prompt to one vector, over as many steps as the prompt takes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Scheduled
from engine.request import PoolingMethod


class Pooler:
    """Sums up, per sequence, what its steps bring; in float32, whatever the model computes in.

    H: hidden size.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # by request id: [H] of prompts that are not complete yet

    def add(self, item: Scheduled, hidden: Tensor) -> tuple[float, ...] | None:
        """hidden: [new tokens, H], normalised. The vector once the prompt is complete, None before."""
        sequence = item.sequence
        pooling = sequence.request.pooling
        assert pooling is not None, "only requests with pooling are pooled"
        complete = sequence.num_computed + item.num_new_tokens == sequence.num_prompt_tokens
        if pooling.method is PoolingMethod.LAST:
            return _unit(hidden[-1].float(), pooling.dimensions) if complete else None
        total = hidden.sum(dim=0, dtype=torch.float32)
        if sequence.num_computed:  # otherwise it begins, or begins again after a preemption
            total += self._sums[sequence.request_id]
        if complete:
            self.forget(sequence.request_id)
            return _unit(total / sequence.num_prompt_tokens, pooling.dimensions)
        self._sums[sequence.request_id] = total
        return None

    def forget(self, request_id: str) -> None:
        self._sums.pop(request_id, None)


def _unit(vector: Tensor, dimensions: int | None) -> tuple[float, ...]:
    """vector: [H]. Its first `dimensions` values, scaled to length 1."""
    return tuple(F.normalize(vector[:dimensions], dim=0).tolist())
