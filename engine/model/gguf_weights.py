"""The tensors of a GGUF file under their Hugging Face names and in their row order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.gguf import GgufFile, GgufTensor
from engine.model.quant import Bytes, dequantize, quant_type_name
from engine.model.weights import StoredMatrix

ROPE_FACTORS = "rope_freqs.weight"

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
# One matrix for each expert: all of them in one tensor, or, in old files, in a tensor each.
_EXPERT_NAMES = {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"}


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of the file, or one expert's slice of it."""

    tensor: GgufTensor
    index: int | None = None  # of the first dimension; None: all of it
    as_row: bool = False  # a vector that stands for a matrix of one row

    @property
    def shape(self) -> tuple[int, ...]:
        if self.as_row:
            return (1, *self.tensor.shape)
        return self.tensor.shape if self.index is None else self.tensor.shape[1:]

    def data(self, file: GgufFile) -> Bytes:
        """The part's bytes as stored: a read-only view of the mapped file."""
        data = file.data(self.tensor)
        if self.index is None:
            return data
        size = len(data) // self.tensor.shape[0]
        return data[self.index * size : (self.index + 1) * size]


class GgufWeights:
    """Read-only access; `read` dequantises to float32."""

    def __init__(self, file: GgufFile, *, paired_heads: tuple[int, int] | None) -> None:
        """`paired_heads`: query and key heads where their rotary pairs are stored side by side; None: half-split."""
        self._file = file
        self._paired_heads = paired_heads
        self._parts = {
            name: part
            for tensor in file.tensors.values()
            if tensor.name != ROPE_FACTORS
            for name, part in _parts(tensor)
        }

    def names(self) -> frozenset[str]:
        return frozenset(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._parts[name].shape

    def read(self, name: str) -> Tensor:
        part = self._parts[name]
        values = torch.from_numpy(dequantize(part.data(self._file), part.tensor.type_id)).reshape(part.shape)
        num_heads = self._num_paired_heads(name)
        return values if num_heads is None else _half_split(values, num_heads)

    def stored(self, name: str) -> StoredMatrix | None:
        part = self._parts[name]
        if len(part.shape) != 2:
            return None
        num_heads, order = self._num_paired_heads(name), None
        if num_heads is not None:
            order = _half_split(torch.arange(part.shape[0], dtype=torch.int32), num_heads).numpy()
        shape = (part.shape[0], part.shape[1])
        return StoredMatrix(quant_type_name(part.tensor.type_id), shape, part.data(self._file), order)

    def _num_paired_heads(self, name: str) -> int | None:
        """Heads of a tensor whose rotary pairs are stored side by side; None where rows lie as they should."""
        if self._paired_heads is None:
            return None
        if ".q_proj." in name:
            return self._paired_heads[0]
        return self._paired_heads[1] if ".k_proj." in name else None


def _half_split(values: Tensor, num_heads: int) -> Tensor:
    """Undoes the converter's row order: pairs (2i, 2i + 1) become (i, i + D / 2). values: [heads * D, ...]."""
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return paired.transpose(1, 2).reshape(values.shape)


def _parts(tensor: GgufTensor) -> Iterator[tuple[str, _Part]]:
    """Hugging Face names, or the tensor's own where there is none (and loading then refuses it)."""
    match tensor.name.split("."):
        case ["blk", layer, stem, "weight"] if stem.removesuffix("_exps") in _EXPERT_NAMES and stem.endswith("_exps"):
            name = _EXPERT_NAMES[stem.removesuffix("_exps")]
            if len(tensor.shape) == 3:
                for expert in range(tensor.shape[0]):
                    yield f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight", _Part(tensor, expert)
                return
        case ["blk", layer, stem, expert, "weight"] if stem in _EXPERT_NAMES and expert.isdecimal():
            yield f"model.layers.{layer}.mlp.experts.{expert}.{_EXPERT_NAMES[stem]}.weight", _Part(tensor)
            return
        case ["blk", layer, stem, kind] if stem in _LAYER_NAMES:
            as_row = stem == "ffn_gate_inp_shexp" and len(tensor.shape) == 1
            yield f"model.layers.{layer}.{_LAYER_NAMES[stem]}.{kind}", _Part(tensor, as_row=as_row)
            return
    yield _TOP_NAMES.get(tensor.name, tensor.name), _Part(tensor)
