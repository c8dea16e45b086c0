"""Models in Hugging Face directories: config.json, generation_config.json and safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from engine.errors import CheckpointError
from engine.facts import DefaultSampling
from engine.model.checkpoint import Checkpoint, Digest
from engine.model.config import ModelConfig, RopeConfig, RopeKind
from engine.model.json_files import read_json_object
from engine.model.random_weights import RandomWeights
from engine.model.safetensors import READABLE_DTYPES, SafetensorsFile, open_directory
from engine.model.weights import StoredMatrix, WeightSource

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def open_huggingface(directory: Path, *, dummy_seed: int | None) -> Checkpoint:
    """Opens a model directory; with `dummy_seed` its weights are random and none are read.

    Raises CheckpointError; no tensor has been read then.
    """
    fields = _Fields(directory / "config.json", read_json_object(directory / "config.json"))
    config = _read_config(fields)
    digest = Digest()
    digest.add_text(repr(config))
    weights: WeightSource
    if dummy_seed is not None:
        weights = RandomWeights(config, dummy_seed)
        digest.add_text(f"random weights, seed {dummy_seed}")
    else:
        files = open_directory(directory)
        for name in sorted(files):
            entry = files[name].entries[name]
            digest.add_tensor(name, entry.dtype, entry.shape, files[name].data(name))
        weights = SafetensorsWeights(files, config)
    generation = _generation_fields(directory)
    eos = generation.counts("eos_token_id") or fields.counts("eos_token_id")
    bos = generation.counts("bos_token_id") or fields.counts("bos_token_id")
    return Checkpoint(
        config=config,
        weights=weights,
        digest=digest.hex(),
        quantization="",
        eos_token_ids=tuple(token_id for token_id in eos if token_id < config.vocab_size),
        bos_token_id=bos[0] if bos else None,
        default_sampling=_default_sampling(generation),
    )


class SafetensorsWeights:
    """The tensors of a model directory, in their stored dtype."""

    def __init__(self, files: dict[str, SafetensorsFile], config: ModelConfig) -> None:
        # Old checkpoints store the rotary frequencies, and tied ones sometimes the output matrix again.
        self._files = {
            name: file
            for name, file in files.items()
            if not name.endswith(".rotary_emb.inv_freq") and not (config.tied_embeddings and name == "lm_head.weight")
        }

    def names(self) -> frozenset[str]:
        return frozenset(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._files[name].entries[name].shape

    def read(self, name: str) -> Tensor:
        return self._files[name].read(name)

    def stored(self, name: str) -> StoredMatrix | None:
        file = self._files[name]
        entry = file.entries[name]
        if len(entry.shape) != 2 or entry.dtype not in READABLE_DTYPES:
            return None
        data = np.frombuffer(file.data(name), dtype=np.uint8)
        return StoredMatrix(entry.dtype, (entry.shape[0], entry.shape[1]), data)


class _Fields:
    """Typed access to a JSON object; errors name the file and the field."""

    def __init__(self, path: Path, values: dict[str, object]) -> None:
        self.path = path
        self.values = values

    def count(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(f"{name} is {value!r}, not a number of 0 or more")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, not a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return None if self.values.get(name) is None else self.number(name, 0.0)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, not true or false")
        return value

    def counts(self, name: str) -> list[int]:
        """A number or a list of numbers, as token ids are given."""
        value = self.values.get(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, int) and item >= 0 for item in items):
            raise self.error(f"{name} is {value!r}, not token ids")
        return [item for item in items if isinstance(item, int)]

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}")


def _read_config(fields: _Fields) -> ModelConfig:
    architecture = _architecture(fields)
    hidden_size = fields.count("hidden_size")
    num_heads = fields.count("num_attention_heads")
    if num_heads == 0:
        raise fields.error("num_attention_heads is 0")
    activation = fields.values.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise fields.error(f"hidden_act is {activation!r}; only 'silu' is supported")
    attention_bias = fields.flag("attention_bias")
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=fields.count("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.count("num_key_value_heads", num_heads),
        head_dim=fields.count("head_dim", hidden_size // num_heads),
        max_position=fields.count("max_position_embeddings", 2048),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_read_rope(fields),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=attention_bias or architecture == "qwen2",
        output_bias=attention_bias and architecture != "qwen2",
        mlp_bias=fields.flag("mlp_bias"),
        qk_norm=architecture == "qwen3",
        sliding_window=_sliding_window(fields, architecture),
    )


def _architecture(fields: _Fields) -> str:
    names = fields.values.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if name not in _ARCHITECTURES:
        raise fields.error(f"architectures is {names!r}; supported are {', '.join(sorted(_ARCHITECTURES))}")
    if fields.values.get("quantization_config") is not None:
        raise fields.error("quantization_config: quantised weights are only loaded from GGUF files")
    return _ARCHITECTURES[name]


def _sliding_window(fields: _Fields, architecture: str) -> int | None:
    if fields.values.get("sliding_window") is None:
        return None
    if architecture in ("qwen2", "qwen3"):
        if not fields.flag("use_sliding_window"):
            return None
        if fields.count("max_window_layers", 0) != 0:
            raise fields.error("max_window_layers: a window in some layers only is not supported")
    elif architecture != "mistral":
        return None
    return fields.count("sliding_window")


def _read_rope(fields: _Fields) -> RopeConfig:
    """Reads `rope_parameters`, or the older pair `rope_theta` and `rope_scaling`."""
    theta = fields.number("rope_theta", 10000.0)
    values = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    if not isinstance(values, dict):
        raise fields.error(f"rope_scaling is {values!r}, not an object")
    scaling = _Fields(fields.path, values)
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


def _generation_fields(directory: Path) -> _Fields:
    path = directory / "generation_config.json"
    return _Fields(path, read_json_object(path) if path.is_file() else {})


def _default_sampling(generation: _Fields) -> DefaultSampling:
    """The recommendations of generation_config.json."""
    top_k = generation.optional_number("top_k")
    temperature = generation.optional_number("temperature")
    return DefaultSampling(
        temperature=temperature,
        top_k=None if top_k is None else int(top_k),
        top_p=generation.optional_number("top_p"),
        min_p=generation.optional_number("min_p"),
        repetition_penalty=generation.optional_number("repetition_penalty"),
    )
