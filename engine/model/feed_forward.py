"""The gated feed-forward network: a layer's own, one expert, or the expert that all tokens share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from engine.model.weight_loader import WeightLoader


class FeedForward:
    """down(silu(gate(x)) * up(x)); gate and up are one matrix."""

    def __init__(self, prefix: str, load: WeightLoader, *, bias: bool = False) -> None:
        self._gate_up = load.linear([f"{prefix}.gate_proj", f"{prefix}.up_proj"], bias=bias)
        self._down = load.linear([f"{prefix}.down_proj"], bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, H]. Returns [T, H]."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(F.silu(gate).mul_(up))
