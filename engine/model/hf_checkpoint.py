"""Models in Hugging Face directories: config.json, generation_config.json and safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from engine.facts import DefaultSampling
from engine.model.checkpoint import Checkpoint, Digest
from engine.model.config import ModelConfig
from engine.model.hf_config import read_config
from engine.model.hf_fields import Fields
from engine.model.json_files import read_json_object
from engine.model.random_weights import RandomWeights
from engine.model.safetensors import READABLE_DTYPES, SafetensorsFile, open_directory
from engine.model.weights import StoredMatrix, WeightSource

_MIXTRAL_NAMES = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def open_huggingface(directory: Path, *, dummy_seed: int | None) -> Checkpoint:
    """Opens a model directory; with `dummy_seed` its weights are random and none are read.

    Raises CheckpointError; no tensor has been read then.
    """
    fields = Fields(directory / "config.json", read_json_object(directory / "config.json"))
    config = read_config(fields)
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
            _common_name(name, config.architecture): (file, name)
            for name, file in files.items()
            if not name.endswith(".rotary_emb.inv_freq") and not (config.tied_embeddings and name == "lm_head.weight")
        }

    def names(self) -> frozenset[str]:
        return frozenset(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored_name = self._files[name]
        return file.entries[stored_name].shape

    def read(self, name: str) -> Tensor:
        file, stored_name = self._files[name]
        return file.read(stored_name)

    def stored(self, name: str) -> StoredMatrix | None:
        file, stored_name = self._files[name]
        entry = file.entries[stored_name]
        if len(entry.shape) != 2 or entry.dtype not in READABLE_DTYPES:
            return None
        data = np.frombuffer(file.data(stored_name), dtype=np.uint8)
        return StoredMatrix(entry.dtype, (entry.shape[0], entry.shape[1]), data)


def _common_name(name: str, architecture: str) -> str:
    """Mixtral's own names of the experts' matrices, as the other architectures have them."""
    if architecture != "mixtral" or ".block_sparse_moe." not in name:
        return name
    name = name.replace(".block_sparse_moe.", ".mlp.")
    for own, common in _MIXTRAL_NAMES.items():
        name = name.replace(f".{own}.weight", f".{common}.weight")
    return name


def _generation_fields(directory: Path) -> Fields:
    path = directory / "generation_config.json"
    return Fields(path, read_json_object(path) if path.is_file() else {})


def _default_sampling(generation: Fields) -> DefaultSampling:
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
