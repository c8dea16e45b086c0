"""What quantisation on load costs on the default model, stored in bfloat16 as checkpoints usually are.

The default model's file is quantised already: see benchmarks.reordered.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.held_text import held_text, log_likelihood
from benchmarks.reordered import reordered
from engine.model.loading import open_checkpoint
from engine.model.quantise import QuantisedWeights
from engine.native.quantise import native_quantise
from tests.support.naive_model import NaiveModel
from tests.support.native_kernels import NativeStepper, Part, StateWeights, instruction_sets, native_library

pytestmark = pytest.mark.model


def mean_log_likelihoods(path: Path, num_texts: int = 4) -> dict[str, float]:
    """Of a held text, per token: exact, and with the native kernels on weights in bfloat16, eight and four bits."""
    checkpoint = open_checkpoint(path)
    config = checkpoint.config
    stored = {name: checkpoint.weights.read(name) for name in checkpoint.weights.names()}
    state = {name: values.bfloat16() for name, values in reordered(config, stored).items()}
    exact = NaiveModel(config, {name: values.float() for name, values in state.items()})
    texts = held_text(path)[:num_texts]
    with torch.inference_mode():
        found = {"exact": float(torch.cat([log_likelihood(exact.logits(text), text) for text in texts]).mean())}
    quantise = native_quantise(native_library(), 2)
    for name in ("none", "int8", "int4"):
        source = StateWeights(state)
        weights = source if name == "none" else QuantisedWeights(source, name, quantise)
        stepper = NativeStepper(config, weights, instruction_sets()[0])
        parts = []
        for text in texts:
            # In pieces that are computed as batches of decoding requests are.
            pieces = [Part(tuple(text), i, min(i + 24, len(text)), tuple(range(32))) for i in range(0, len(text), 24)]
            parts.append(log_likelihood(torch.cat([stepper.logits(piece) for piece in pieces]), text))
        found[name] = float(torch.cat(parts).mean())
    return found


def test_reordering_changes_nothing_but_the_order(default_model_path: Path) -> None:
    checkpoint = open_checkpoint(default_model_path)
    state = {name: checkpoint.weights.read(name) for name in checkpoint.weights.names()}
    text = held_text(default_model_path)[0][:32]
    with torch.inference_mode():
        first = NaiveModel(checkpoint.config, state).logits(text)
        second = NaiveModel(checkpoint.config, reordered(checkpoint.config, state)).logits(text)
    torch.testing.assert_close(first, second, atol=2e-3, rtol=2e-3)


def test_the_price_of_fewer_bits(default_model_path: Path) -> None:
    """The figures of docs/models.md, with some room."""
    found = mean_log_likelihoods(default_model_path, num_texts=2)
    loss = {name: found[name] / found["exact"] - 1 for name in ("none", "int8", "int4")}
    assert abs(loss["none"]) < 0.003
    assert abs(loss["int8"]) < 0.005
    assert 0 < loss["int4"] < 0.08
