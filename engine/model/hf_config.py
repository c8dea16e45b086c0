"""config.json of the supported architectures as the shape of a model."""

from __future__ import annotations

from engine.model.config import MAX_LAYERS, ExpertConfig, ModelConfig, RopeConfig, RopeKind
from engine.model.hf_fields import Fields

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "MixtralForCausalLM": "mixtral",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}


def read_config(fields: Fields) -> ModelConfig:
    """The configuration of a supported architecture. Raises CheckpointError, which names what is not supported."""
    architecture = _architecture(fields)
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    if num_heads == 0:
        raise fields.error("num_attention_heads is 0")
    activation = fields.values.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.error(f"hidden_act is {activation!r}; only 'silu' is supported")
    num_layers = fields.count("num_hidden_layers")
    attention_bias = fields.flag("attention_bias")
    is_qwen2 = architecture in ("qwen2", "qwen2_moe")
    # Qwen2 has the bias without a word; its mixture of experts may say otherwise.
    qwen2_bias = architecture == "qwen2" or (is_qwen2 and fields.flag("qkv_bias", default=True))
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=fields.count("head_dim", hidden_size // num_heads),
        max_position=fields.count("max_position_embeddings", 2048),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_read_rope(fields),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=attention_bias or qwen2_bias,
        output_bias=attention_bias and not is_qwen2,
        mlp_bias=fields.flag("mlp_bias"),
        qk_norm=architecture in ("qwen3", "qwen3_moe"),
        sliding_window=_sliding_window(fields, architecture),
        experts=_read_experts(fields, architecture, num_layers),
    )


def _read_experts(fields: Fields, architecture: str, num_layers: int) -> ExpertConfig | None:
    if architecture == "mixtral":
        return ExpertConfig(
            num_experts=fields.count("num_local_experts"),
            num_active=fields.count("num_experts_per_tok"),
            intermediate_size=fields.count("intermediate_size"),
            normalised=True,
        )
    if architecture not in ("qwen2_moe", "qwen3_moe"):
        return None
    # Experts in every so many layers, counted from 1, except in those that are named.
    step = fields.count("decoder_sparse_step", 1)
    if step == 0:
        raise fields.error("decoder_sparse_step is 0")
    named = fields.counts("mlp_only_layers")
    has_shared = architecture == "qwen2_moe"
    return ExpertConfig(
        num_experts=fields.count("num_experts"),
        num_active=fields.count("num_experts_per_tok"),
        intermediate_size=fields.count("moe_intermediate_size"),
        normalised=fields.flag("norm_topk_prob"),
        shared_intermediate_size=fields.count("shared_expert_intermediate_size") if has_shared else 0,
        dense_layers=frozenset(
            layer for layer in range(min(num_layers, MAX_LAYERS)) if layer in named or (layer + 1) % step
        ),
    )


def _architecture(fields: Fields) -> str:
    names = fields.values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name not in _ARCHITECTURES:
        raise fields.error(f"architectures is {names!r}; supported are {', '.join(sorted(_ARCHITECTURES))}")
    if fields.values.get("quantization_config") is not None:
        raise fields.error("quantization_config: quantised weights are only loaded from GGUF files")
    return _ARCHITECTURES[name]


def _sliding_window(fields: Fields, architecture: str) -> int | None:
    if fields.values.get("sliding_window") is None:
        return None
    if architecture.startswith("qwen"):
        if not fields.flag("use_sliding_window"):
            return None
        if fields.count("max_window_layers", 0) != 0:
            raise fields.error("max_window_layers: a window in some layers only is not supported")
    elif architecture not in ("mistral", "mixtral"):
        return None
    return fields.count("sliding_window")


def _read_rope(fields: Fields) -> RopeConfig:
    """Reads `rope_parameters`, or the older pair `rope_theta` and `rope_scaling`."""
    theta = fields.number("rope_theta", 10000.0)
    values = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    if not isinstance(values, dict):
        raise fields.error(f"rope_scaling is {values!r}, not an object")
    scaling = Fields(fields.path, values)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind not in [member.value for member in RopeKind]:
        supported = ", ".join(member.value for member in RopeKind)
        raise fields.error(f"rope_scaling has the type {kind!r}; supported are {supported}")
    if scaling.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0)) != 1.0:
        raise fields.error("partial_rotary_factor: only rotation of all dimensions is supported")
    rope = RopeConfig(
        theta=scaling.number("rope_theta", theta),
        kind=RopeKind(kind),
        factor=scaling.number("factor", 1.0),
        low_freq_factor=scaling.number("low_freq_factor", 1.0),
        high_freq_factor=scaling.number("high_freq_factor", 4.0),
        original_max_position=scaling.count("original_max_position_embeddings", 8192),
    )
    if rope.factor <= 0 or rope.high_freq_factor <= rope.low_freq_factor:
        raise fields.error(f"rope_scaling is out of range: {values!r}")
    return rope
