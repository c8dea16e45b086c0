"""A checkpoint, opened: its configuration, its weights, and what it says about itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from engine.errors import CheckpointError
from engine.facts import DefaultSampling
from engine.model.config import ModelConfig
from engine.model.weights import WeightSource, expected_shapes

# Bytes hashed from each of a tensor's beginning, middle and end: checkpoints that differ at all
# differ in every tensor's values, and start-up must not read a large model twice.
_SAMPLE_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a model folder or file holds. `digest` identifies structure and (by samples) content."""

    config: ModelConfig
    weights: WeightSource
    digest: str
    quantization: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    default_sampling: DefaultSampling

    @property
    def num_parameters(self) -> int:
        return sum(prod(shape) for _, shape in expected_shapes(self.config))


def open_checkpoint(path: Path, *, dummy: bool = False, seed: int = 0) -> Checkpoint:
    """Opens a `.gguf` file or a Hugging Face directory and checks that all its weights fit together.

    With `dummy` the weights are random, a function of `seed`, and only the configuration of a directory is read.
    Raises CheckpointError; nothing large has been allocated then.
    """
    # Each format imports this module for the classes above.
    from engine.model.gguf_checkpoint import open_gguf
    from engine.model.hf_checkpoint import open_huggingface

    if path.is_dir():
        checkpoint = open_huggingface(path, dummy_seed=seed if dummy else None)
    elif not path.is_file():
        raise CheckpointError(f"{path}: no such file or directory; name a .gguf file or a model directory")
    elif dummy:
        raise CheckpointError(f"{path}: random weights need a directory with a config.json")
    else:
        checkpoint = open_gguf(path)
    check_tensors(path, checkpoint)
    return checkpoint


def check_tensors(path: Path, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError unless the weights are exactly those of the configuration.

    A tensor too many is as wrong as one too few: a bias that nobody adds gives fluent nonsense.
    """
    expected = dict(expected_shapes(checkpoint.config))
    names = checkpoint.weights.names()
    missing = sorted(expected.keys() - names)
    if missing:
        raise CheckpointError(f"{path}: {len(missing)} tensors are missing: {_some(missing)}")
    unknown = sorted(names - expected.keys())
    if unknown:
        raise CheckpointError(
            f"{path}: {len(unknown)} tensors have no place in the architecture "
            f"{checkpoint.config.architecture!r}: {_some(unknown)}"
        )
    for name, shape in expected.items():
        actual = checkpoint.weights.shape(name)
        if actual != shape:
            raise CheckpointError(
                f"{path}: tensor {name!r} has the shape {list(actual)}, the configuration needs {list(shape)}"
            )


class Digest:
    """Collects what identifies a checkpoint."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add_text(self, text: str) -> None:
        self._hash.update(f"{len(text)}:{text}".encode())

    def add_tensor(self, name: str, kind: str, shape: Iterable[int], data: memoryview) -> None:
        """Adds a tensor by description and by samples of its stored bytes."""
        self.add_text(f"{name} {kind} {list(shape)}")
        middle = max(0, (len(data) - _SAMPLE_SIZE) // 2)
        for begin in (0, middle, max(0, len(data) - _SAMPLE_SIZE)):
            self._hash.update(data[begin : begin + _SAMPLE_SIZE])

    def hex(self) -> str:
        return self._hash.hexdigest()


def most_common(kinds: Iterable[str]) -> str:
    """The storage type of most matrices, which is what people call a checkpoint's quantisation."""
    counted = Counter(kinds).most_common(1)
    return counted[0][0] if counted else ""


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
