"""Models in GGUF files: metadata keys, tensor names and row order, translated to Hugging Face's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.facts import DefaultSampling
from engine.model.checkpoint import Checkpoint, Digest, most_common
from engine.model.config import ModelConfig, RopeConfig, RopeKind
from engine.model.gguf import GgufFile
from engine.model.quant import QUANT_TYPES, dequantize, quant_type_name
from engine.model.weights import StoredMatrix

# Architecture name to "queries and keys are stored with rotary pairs side by side".
_ARCHITECTURES = {"llama": True, "qwen2": False, "qwen3": False}
_FLOAT_TYPES = {"F32", "F16", "BF16"}
_ROPE_FACTORS = "rope_freqs.weight"

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
}
# Control tokens that end a turn or a text whatever the metadata name as the end.
_END_TOKENS = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "</s>", "<eos>"}
)
_CONTROL = 3  # tokenizer.ggml.token_type


def open_gguf(path: Path) -> Checkpoint:
    """Opens a GGUF model. Raises CheckpointError; no tensor has been read then."""
    file = GgufFile(path)
    unsupported = sorted({quant_type_name(t.type_id) for t in file.tensors.values() if t.type_id not in QUANT_TYPES})
    if unsupported:
        supported = ", ".join(sorted(quant.name for quant in QUANT_TYPES.values()))
        raise CheckpointError(
            f"{path}: has tensors of type {', '.join(unsupported)}, which cannot be loaded; supported are {supported}"
        )
    config = _read_config(file)
    matrices = [tensor for tensor in file.tensors.values() if len(tensor.shape) > 1]
    kind = most_common(quant_type_name(tensor.type_id) for tensor in matrices)
    digest = Digest()
    digest.add_text(repr(config))
    for tensor in file.tensors.values():
        digest.add_tensor(tensor.name, quant_type_name(tensor.type_id), tensor.shape, file.data(tensor).data)
    metadata = _Metadata(file)
    return Checkpoint(
        config=config,
        weights=GgufWeights(file, config),
        digest=digest.hex(),
        quantization="" if kind in _FLOAT_TYPES else kind,
        eos_token_ids=_end_token_ids(metadata, config.vocab_size),
        bos_token_id=metadata.optional_count("tokenizer.ggml.bos_token_id"),
        default_sampling=DefaultSampling(),
    )


class GgufWeights:
    """The tensors of a GGUF file under their Hugging Face names, dequantised to float32."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._stored = {_translate(name): tensor for name, tensor in file.tensors.items() if name != _ROPE_FACTORS}

    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored[name].shape

    def read(self, name: str) -> Tensor:
        stored = self._stored[name]
        values = torch.from_numpy(dequantize(self._file.data(stored), stored.type_id)).reshape(stored.shape)
        num_heads = self._num_paired_heads(name)
        return values if num_heads is None else _half_split(values, num_heads)

    def stored(self, name: str) -> StoredMatrix | None:
        stored = self._stored[name]
        if len(stored.shape) != 2:
            return None
        num_heads, order = self._num_paired_heads(name), None
        if num_heads is not None:
            order = _half_split(torch.arange(stored.shape[0], dtype=torch.int32), num_heads).numpy()
        shape = (stored.shape[0], stored.shape[1])
        return StoredMatrix(quant_type_name(stored.type_id), shape, self._file.data(stored), order)

    def _num_paired_heads(self, name: str) -> int | None:
        """Heads of a tensor whose rotary pairs are stored side by side; None where rows lie as they should."""
        if not _ARCHITECTURES[self._config.architecture]:
            return None
        if ".q_proj." in name:
            return self._config.num_heads
        return self._config.num_kv_heads if ".k_proj." in name else None


def _half_split(values: Tensor, num_heads: int) -> Tensor:
    """Undoes the converter's row order: pairs (2i, 2i + 1) become (i, i + D / 2). values: [heads * D, ...]."""
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return paired.transpose(1, 2).reshape(values.shape)


def _translate(name: str) -> str:
    """The Hugging Face name, or the name itself where there is none (and loading then refuses it)."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return name


class _Metadata:
    """Typed access to a file's metadata; errors name the key."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def text(self, key: str, default: str) -> str:
        value = self._file.metadata.get(key, default)
        if not isinstance(value, str):
            raise self.error(key, value, "a string")
        return value

    def optional_count(self, key: str) -> int | None:
        value = self._file.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(key, value, "a number of 0 or more")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.optional_count(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self._file.path}: the metadata {key!r} are missing")
        return value

    def number(self, key: str, default: float) -> float:
        value = self._file.metadata.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(key, value, "a number")
        return float(value)

    def texts(self, key: str) -> list[str]:
        value = self._file.metadata.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, value, "a list")
        return [item for item in value if isinstance(item, str)]

    def counts(self, key: str) -> list[int]:
        value = self._file.metadata.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, value, "a list")
        return [item for item in value if isinstance(item, int)]

    def error(self, key: str, value: object, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self._file.path}: the metadata {key!r} are {value!r:.80}, not {wanted}")


def _read_config(file: GgufFile) -> ModelConfig:
    metadata = _Metadata(file)
    architecture = metadata.text("general.architecture", "")
    if architecture not in _ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: the architecture {architecture!r} cannot be loaded; "
            f"supported in GGUF are {', '.join(sorted(_ARCHITECTURES))}"
        )
    key = f"{architecture}."
    if metadata.count(f"{key}expert_count", 0):
        raise CheckpointError(f"{file.path}: mixtures of experts cannot be loaded from GGUF")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path}: the tensor 'token_embd.weight' is missing or no matrix")
    hidden_size = metadata.count(f"{key}embedding_length")
    num_heads = metadata.count(f"{key}attention.head_count")
    if num_heads == 0:
        raise CheckpointError(f"{file.path}: the metadata '{key}attention.head_count' are 0")
    head_dim = metadata.count(f"{key}attention.key_length", hidden_size // num_heads)
    window = metadata.count(f"{key}attention.sliding_window", 0)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=metadata.count(f"{key}feed_forward_length"),
        num_layers=metadata.count(f"{key}block_count"),
        num_heads=num_heads,
        num_kv_heads=metadata.count(f"{key}attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=metadata.count(f"{key}context_length"),
        rms_norm_eps=metadata.number(f"{key}attention.layer_norm_rms_epsilon", 1e-5),
        rope=_read_rope(file, metadata, key, head_dim),
        tied_embeddings="output.weight" not in file.tensors,
        sliding_window=window or None,
    )
    return replace(
        config,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
    )


def _read_rope(file: GgufFile, metadata: _Metadata, key: str, head_dim: int) -> RopeConfig:
    rotated = metadata.count(f"{key}rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise CheckpointError(f"{file.path}: rotates {rotated} of {head_dim} dimensions; only all of them is supported")
    kind = metadata.text(f"{key}rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise CheckpointError(f"{file.path}: the rope scaling {kind!r} is not supported; 'none' and 'linear' are")
    factors = file.tensors.get(_ROPE_FACTORS)
    return RopeConfig(
        theta=metadata.number(f"{key}rope.freq_base", 10000.0),
        kind=RopeKind.LINEAR if kind == "linear" else RopeKind.DEFAULT,
        factor=metadata.number(f"{key}rope.scaling.factor", 1.0) or 1.0,
        freq_factors=() if factors is None else tuple(dequantize(file.data(factors), factors.type_id).tolist()),
    )


def _end_token_ids(metadata: _Metadata, vocab_size: int) -> tuple[int, ...]:
    """The named end tokens first, then control tokens that are known to end a text."""
    named = [metadata.optional_count(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = metadata.counts("tokenizer.ggml.token_type")
    known = [
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == _CONTROL and token in _END_TOKENS
    ]
    ids = [token_id for token_id in (*named, *known) if token_id is not None and token_id < vocab_size]
    return tuple(dict.fromkeys(ids))
