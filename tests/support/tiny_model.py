"""A tiny random model, the same every time: as configuration, as Hugging Face directory and as GGUF file.

Two layers of 64, a byte-level vocabulary of 260. It talks nonsense, but every path of the engine runs on it in
milliseconds, in float32, with no download:

    directory = write_huggingface_directory(tmp_path / "tiny")   # then: muster serve --model <directory>
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from engine.model.config import ExpertConfig, ModelConfig, RopeConfig, RopeKind
from engine.model.random_weights import RandomWeights

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
NUM_BYTES = 256
BOS_TOKEN_ID = NUM_BYTES + 1
EOS_TOKEN_ID = NUM_BYTES + 2

TINY_CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=NUM_BYTES + len(SPECIAL_TOKENS),
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=1024,
    rope=RopeConfig(theta=10000.0),
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_HF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
_GGUF_ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}
_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_MIXTRAL_NAMES = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")


def tiny_config(architecture: str) -> ModelConfig:
    """The tiny model with the differences of an architecture."""
    variants = {
        "llama": TINY_CONFIG,
        "mistral": replace(TINY_CONFIG, architecture="mistral", sliding_window=24),
        "qwen2": replace(TINY_CONFIG, architecture="qwen2", qkv_bias=True, tied_embeddings=True),
        "qwen3": replace(TINY_CONFIG, architecture="qwen3", qk_norm=True, head_dim=32),
        "mixtral": replace(
            TINY_CONFIG,
            architecture="mixtral",
            intermediate_size=96,
            experts=ExpertConfig(num_experts=8, num_active=2, intermediate_size=96, normalised=True),
        ),
        "qwen2_moe": replace(
            TINY_CONFIG,
            architecture="qwen2_moe",
            qkv_bias=True,
            experts=ExpertConfig(
                num_experts=6, num_active=3, intermediate_size=32, normalised=False, shared_intermediate_size=96
            ),
        ),
        "qwen3_moe": replace(
            TINY_CONFIG,
            architecture="qwen3_moe",
            qk_norm=True,
            num_layers=3,
            head_dim=32,
            experts=ExpertConfig(
                num_experts=10, num_active=4, intermediate_size=32, normalised=True, dense_layers=frozenset({1})
            ),
        ),
    }
    return variants[architecture]


def tiny_state(config: ModelConfig = TINY_CONFIG, seed: int = 0) -> dict[str, Tensor]:
    """All weights under their Hugging Face names."""
    weights = RandomWeights(config, seed)
    return {name: weights.read(name) for name in sorted(weights.names())}


def write_huggingface_directory(
    directory: Path, config: ModelConfig = TINY_CONFIG, seed: int = 0, num_shards: int = 1
) -> Path:
    """A complete model directory in float32. Returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", huggingface_config(config))
    _write_json(directory / "generation_config.json", {"eos_token_id": [EOS_TOKEN_ID, NUM_BYTES]})
    _write_tokenizer(directory)
    state = {_huggingface_name(name, config): values for name, values in tiny_state(config, seed).items()}
    if num_shards == 1:
        save_file(state, directory / "model.safetensors")
        return directory
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {key: state[key] for key in list(state)[shard::num_shards]}
        save_file(part, directory / name)
        weight_map |= dict.fromkeys(part, name)
    _write_json(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return directory


def huggingface_config(config: ModelConfig) -> dict[str, object]:
    """The config.json of a configuration."""
    fields: dict[str, object] = {
        "architectures": [_HF_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.output_bias,
        "mlp_bias": config.mlp_bias,
        "hidden_act": "silu",
        "sliding_window": config.sliding_window,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
    }
    if config.experts is not None:
        fields |= _expert_fields(config.experts, config.architecture)
    rope = config.rope
    if rope.kind is not RopeKind.DEFAULT:
        fields["rope_scaling"] = {
            "rope_type": rope.kind.value,
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }
    return fields


def _expert_fields(experts: ExpertConfig, architecture: str) -> dict[str, object]:
    if architecture == "mixtral":
        return {"num_local_experts": experts.num_experts, "num_experts_per_tok": experts.num_active}
    return {
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.num_active,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.normalised,
        "shared_expert_intermediate_size": experts.shared_intermediate_size,
        "mlp_only_layers": sorted(experts.dense_layers),
        "decoder_sparse_step": 1,
    }


def write_gguf(
    path: Path,
    config: ModelConfig = TINY_CONFIG,
    seed: int = 0,
    matrix_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """The same model as a GGUF file; matrices in `matrix_type`, norms and biases in F32. Returns the path."""
    writer = gguf.GGUFWriter(path, _GGUF_ARCHITECTURES.get(config.architecture, config.architecture))
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.experts is not None:
        writer.add_expert_count(config.experts.num_experts)
        writer.add_expert_used_count(config.experts.num_active)
        if config.architecture != "mixtral":
            writer.add_expert_feed_forward_length(config.experts.intermediate_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*byte_symbols(), *SPECIAL_TOKENS])
    writer.add_token_types([1] * NUM_BYTES + [3] * len(SPECIAL_TOKENS))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(BOS_TOKEN_ID)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in _with_stacked_experts(tiny_state(config, seed), config).items():
        values = tensor
        if config.architecture in ("llama", "mixtral") and ("q_proj" in name or "k_proj" in name):
            values = _interleave(values, config.num_heads if "q_proj" in name else config.num_kv_heads)
        kind = matrix_type if values.dim() > 1 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(values.contiguous().numpy(), kind)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _with_stacked_experts(state: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """What converters do to experts: one tensor for all of a layer; the shared one's gate is a vector."""
    if config.experts is None:
        return state
    stacked = {name: values for name, values in state.items() if ".experts." not in name}
    for layer in range(config.num_layers):
        if config.experts_of(layer) is None:
            continue
        prefix = f"model.layers.{layer}.mlp.experts"
        for part in _MIXTRAL_NAMES:
            parts = [state[f"{prefix}.{expert}.{part}.weight"] for expert in range(config.experts.num_experts)]
            stacked[f"{prefix}.{part}.weight"] = torch.stack(parts)
    return {name: values[0] if "shared_expert_gate" in name else values for name, values in stacked.items()}


def byte_symbols() -> list[str]:
    """The printable stand-ins of the bytes 0 to 255 in byte-level vocabularies."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(NUM_BYTES) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable}
    symbols |= {byte: chr(256 + rank) for rank, byte in enumerate(others)}
    return [symbols[byte] for byte in range(NUM_BYTES)]


def _interleave(values: Tensor, num_heads: int) -> Tensor:
    """What converters do to queries and keys of the llama architecture: pairs (i, i + D / 2) side by side."""
    return values.reshape(num_heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _gguf_name(name: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    if stem.startswith("mlp.experts."):
        part = stem.removeprefix("mlp.experts.").removesuffix("_proj")
        return f"blk.{layer}.ffn_{part}_exps.{kind}"
    return f"blk.{layer}.{_GGUF_LAYER_NAMES[stem]}.{kind}"


def _huggingface_name(name: str, config: ModelConfig) -> str:
    """Mixtral has names of its own for its experts."""
    if config.architecture != "mixtral" or ".mlp." not in name:
        return name
    name = name.replace(".mlp.", ".block_sparse_moe.")
    for common, own in _MIXTRAL_NAMES.items():
        name = name.replace(f".{common}.", f".{own}.")
    return name


def _write_tokenizer(directory: Path) -> None:
    vocabulary = {symbol: index for index, symbol in enumerate(byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|pad|>",
        "add_bos_token": False,
        "model_max_length": TINY_CONFIG.max_position,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(directory / "tokenizer_config.json", fields)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    print(write_huggingface_directory(Path(sys.argv[1])))
