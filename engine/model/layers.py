"""The two layers with weights: linear maps, packed for the processor where that helps, and RMS norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# A packed product is only worth it for matrices; below this size the call overhead dominates.
_MIN_PACKED_ELEMENTS = 1 << 14


class Linear:
    """y = x Wᵀ + b. Weights are reordered once for the CPU's matrix units when torch can do so.

    weight: [out, in]; bias: [out] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._packed = packed = _pack(weight)
        # One copy in memory: the plain weight is dropped once it is packed.
        self._weight = weight if packed is None else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, in]. Returns [T, out]."""
        if self._packed is not None:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
            return y
        assert self._weight is not None
        return F.linear(x, self._weight, self._bias)


def _pack(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's own layout, or None where torch or the processor has no such path.

    float32 stays plain: there the product of a packed weight is not measurably faster.
    """
    if weight.device.type != "cpu" or weight.numel() < _MIN_PACKED_ELEMENTS:
        return None
    operators = torch.ops.mkldnn
    probe = {
        torch.bfloat16: "_is_mkldnn_bf16_supported",
        torch.float16: "_is_mkldnn_fp16_supported",
    }.get(weight.dtype)
    try:
        if probe is None or not getattr(operators, probe)():
            return None
        packed: Tensor = operators._reorder_linear_weight(weight)
        operators._linear_pointwise(weight.new_zeros(1, weight.shape[1]), packed, None, "none", [], "")
    except (AttributeError, RuntimeError):  # the operators are private to torch and differ between releases
        return None
    return packed


class RmsNorm:
    """x / rms(x) * weight over the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._shape = (weight.shape[0],)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._shape, self._weight, self._eps)
