"""Models in GGUF files: metadata keys, tensor names and row order, translated to Hugging Face's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.errors import CheckpointError
from engine.facts import DefaultSampling
from engine.model.checkpoint import Checkpoint, Digest, most_common
from engine.model.config import MAX_LAYERS, ExpertConfig, ModelConfig, RopeConfig, RopeKind
from engine.model.gguf import GgufFile
from engine.model.gguf_metadata import Metadata
from engine.model.gguf_weights import ROPE_FACTORS, GgufWeights
from engine.model.quant import QUANT_TYPES, dequantize, quant_type_name

# Architecture name to "queries and keys are stored with rotary pairs side by side".
_ARCHITECTURES = {"llama": True, "qwen2": False, "qwen3": False, "qwen2moe": False, "qwen3moe": False}
# Architectures that may have experts, to "the weights of a token's experts are scaled to sum up to 1".
_NORMALISED = {"llama": True, "qwen2moe": False, "qwen3moe": True}
_SOFTMAX = 1  # expert_gating_func
_FLOAT_TYPES = {"F32", "F16", "BF16"}

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
    metadata = Metadata(file)
    return Checkpoint(
        config=config,
        weights=GgufWeights(
            file,
            paired_heads=(config.num_heads, config.num_kv_heads) if _ARCHITECTURES[config.architecture] else None,
        ),
        digest=digest.hex(),
        quantization="" if kind in _FLOAT_TYPES else kind,
        eos_token_ids=_end_token_ids(metadata, config.vocab_size),
        bos_token_id=metadata.optional_count("tokenizer.ggml.bos_token_id"),
        default_sampling=DefaultSampling(),
    )


def _read_config(file: GgufFile) -> ModelConfig:
    metadata = Metadata(file)
    architecture = metadata.text("general.architecture", "")
    if architecture not in _ARCHITECTURES:
        raise CheckpointError(
            f"{file.path}: the architecture {architecture!r} cannot be loaded; "
            f"supported in GGUF are {', '.join(sorted(_ARCHITECTURES))}"
        )
    key = f"{architecture}."
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path}: the tensor 'token_embd.weight' is missing or no matrix")
    hidden_size = metadata.count(f"{key}embedding_length")
    num_heads = metadata.count(f"{key}attention.head_count")
    if num_heads == 0:
        raise CheckpointError(f"{file.path}: the metadata '{key}attention.head_count' are 0")
    head_dim = metadata.count(f"{key}attention.key_length", hidden_size // num_heads)
    num_layers = metadata.count(f"{key}block_count")
    experts = _read_experts(file, metadata, key, num_layers)
    window = metadata.count(f"{key}attention.sliding_window", 0)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden_size,
        intermediate_size=metadata.count(
            f"{key}feed_forward_length", None if experts is None else experts.intermediate_size
        ),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=metadata.count(f"{key}attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position=metadata.count(f"{key}context_length"),
        rms_norm_eps=metadata.number(f"{key}attention.layer_norm_rms_epsilon", 1e-5),
        rope=_read_rope(file, metadata, key, head_dim),
        tied_embeddings="output.weight" not in file.tensors,
        sliding_window=window or None,
        experts=experts,
    )
    return replace(
        config,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
    )


def _read_experts(file: GgufFile, metadata: Metadata, key: str, num_layers: int) -> ExpertConfig | None:
    """Refuses what routes tokens otherwise than by the softmax of the router's outputs."""
    num_experts = metadata.count(f"{key}expert_count", 0)
    architecture = key.removesuffix(".")
    if not num_experts:
        if architecture.endswith("moe"):
            raise CheckpointError(f"{file.path}: the metadata '{key}expert_count' are missing or 0")
        return None
    if architecture not in _NORMALISED:
        raise CheckpointError(f"{file.path}: mixtures of experts of the architecture {architecture!r} cannot be loaded")
    if metadata.count(f"{key}expert_gating_func", _SOFTMAX) not in (0, _SOFTMAX):
        raise CheckpointError(f"{file.path}: '{key}expert_gating_func' is not softmax, which alone is supported")
    if metadata.number(f"{key}expert_weights_scale", 0.0) not in (0.0, 1.0):
        raise CheckpointError(f"{file.path}: '{key}expert_weights_scale' is not 1, which alone is supported")
    if metadata.count(f"{key}expert_group_count", 0) > 1:
        raise CheckpointError(f"{file.path}: '{key}expert_group_count' is above 1; groups of experts are not supported")
    own_size = metadata.optional_count(f"{key}expert_feed_forward_length")
    return ExpertConfig(
        num_experts=num_experts,
        num_active=metadata.count(f"{key}expert_used_count"),
        intermediate_size=own_size or metadata.count(f"{key}feed_forward_length"),
        normalised=metadata.flag(f"{key}expert_weights_norm", _NORMALISED[architecture]),
        shared_intermediate_size=_shared_size(file),
        dense_layers=frozenset(
            layer for layer in range(min(num_layers, MAX_LAYERS)) if f"blk.{layer}.ffn_gate.weight" in file.tensors
        ),
    )


def _shared_size(file: GgufFile) -> int:
    """The size of the shared expert; not all converters write it down. 0: there is none."""
    for tensor in file.tensors.values():
        if tensor.name.endswith(".ffn_up_shexp.weight"):
            return tensor.shape[0]
    return 0


def _read_rope(file: GgufFile, metadata: Metadata, key: str, head_dim: int) -> RopeConfig:
    rotated = metadata.count(f"{key}rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise CheckpointError(f"{file.path}: rotates {rotated} of {head_dim} dimensions; only all of them is supported")
    kind = metadata.text(f"{key}rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise CheckpointError(f"{file.path}: the rope scaling {kind!r} is not supported; 'none' and 'linear' are")
    factors = file.tensors.get(ROPE_FACTORS)
    return RopeConfig(
        theta=metadata.number(f"{key}rope.freq_base", 10000.0),
        kind=RopeKind.LINEAR if kind == "linear" else RopeKind.DEFAULT,
        factor=metadata.number(f"{key}rope.scaling.factor", 1.0) or 1.0,
        freq_factors=() if factors is None else tuple(dequantize(file.data(factors), factors.type_id).tolist()),
    )


def _end_token_ids(metadata: Metadata, vocab_size: int) -> tuple[int, ...]:
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
