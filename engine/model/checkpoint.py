"""A checkpoint, opened: its configuration, its weights, and what it says about itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

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
