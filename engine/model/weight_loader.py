"""From a checkpoint's tensors to the layers that compute with them."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.layers import Linear
from engine.model.weights import WeightSource


class WeightLoader:
    """Reads tensors into the computation's dtype and fuses matrices that share their input."""

    def __init__(self, weights: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self._weights = weights
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str) -> Tensor:
        """The tensor of that name."""
        return self._weights.read(name).to(device=self._device, dtype=self._dtype)

    def linear(self, names: list[str], *, bias: bool = False) -> Linear:
        """One linear map whose output is the outputs of all named ones, in order."""
        weight = torch.cat([self.tensor(f"{name}.weight") for name in names])
        return Linear(weight, torch.cat([self.tensor(f"{name}.bias") for name in names]) if bias else None)
