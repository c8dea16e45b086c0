"""What the front ends ask when they want vectors; validated, as everything in `gateway.generation_request`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

# float32, of Euclidean length 1.
Vector = Sequence[float]


class PoolingMethod(Enum):
    """How the hidden states of an input's tokens become one vector."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Inputs to turn into vectors. `dimensions` None keeps all; `rank` is a global rank the caller insists on."""

    request_id: str
    inputs: tuple[tuple[int, ...], ...]
    pooling: PoolingMethod = PoolingMethod.MEAN
    dimensions: int | None = None
    rank: int | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.inputs))
