"""Text that no quantisation was fitted to: this repository's own, as tokens of a model in a GGUF file."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from engine.model.gguf import GgufFile

_ROOT = Path(__file__).parents[1]
_FILES = ("CONTRIBUTING.md", "ARCHITECTURE.md", "docs/grpcurl.md", "engine/core.py")
_NUM_TOKENS = 512


def held_text(path: Path) -> list[list[int]]:
    """About 2,000 tokens, in pieces of 512."""
    metadata = GgufFile(path).metadata
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    pairs = [(left, right) for left, _, right in (str(merge).partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={str(t): i for i, t in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return [tokenizer.encode((_ROOT / name).read_text()).ids[:_NUM_TOKENS] for name in _FILES]


def log_likelihood(logits: Tensor, token_ids: list[int]) -> Tensor:
    """[tokens - 1] of each token after the first. logits: [tokens, V]; the last row is not needed."""
    targets = torch.tensor(token_ids[1:])
    return torch.log_softmax(logits[: len(targets)], dim=-1).gather(1, targets[:, None])[:, 0]
