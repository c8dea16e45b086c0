"""Numbers between host and device, without either waiting for the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def upload(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Host numbers, or a host tensor, on `device`.

    The copy starts from page-locked memory: from any other, CUDA waits for everything the stream has to do yet.
    torch keeps such memory until the copy is done, so nobody has to hold it.
    """
    if device.type != "cuda":
        return torch.as_tensor(values, dtype=dtype, device=device)
    host = torch.as_tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True)


class Download:
    """Tensors on their way to the host. `wait` is where a step waits for its device, the only place."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._tensors = list(tensors)
        if any(tensor.is_cuda for tensor in tensors):
            self._tensors = [
                torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
                for tensor in tensors
            ]
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
            self._arrived.record()

    def wait(self) -> list[Tensor]:
        """The tensors on the host, in order. Raises what the device's work raised."""
        if self._arrived is not None:
            self._arrived.synchronize()
            self._arrived = None
        return self._tensors
