"""What the requests ask: seeded random words."""

from __future__ import annotations

import random
from dataclasses import dataclass

WORDS = (
    "river stone light winter garden answer number simple letter morning window paper music bridge forest silver "
    "engine market valley summer doctor picture question machine island history science village planet weather"
).split()


@dataclass(frozen=True, slots=True)
class Prompts:
    """Every (seed, point, index) has its own words, so that no server finds a prompt in its prefix cache by accident.

    The first `num_shared_words` are the same in all prompts of a seed, to measure that cache on purpose.
    """

    seed: str
    num_words: int
    num_shared_words: int = 0

    def prompt(self, point: str, index: int) -> str:
        shared = min(self.num_shared_words, self.num_words)
        words = _words(f"{self.seed} shared", shared) + _words(f"{self.seed} {point} {index}", self.num_words - shared)
        return " ".join(words)


def _words(seed: str, count: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)
