"""The whole native step against torch in float32: by differences of logits, never by text."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor

from benchmarks.held_text import held_text, log_likelihood
from engine.model.checkpoint import Checkpoint
from engine.model.loading import open_checkpoint
from engine.model.weights import expected_shapes
from tests.support.naive_model import NaiveModel
from tests.support.native_kernels import NativeStepper, Part, StateWeights, instruction_sets
from tests.support.tiny_model import TINY_CONFIG, tiny_config, tiny_state, write_gguf

# The largest part of a logit's spread that bfloat16 weights, keys and values may move it by (root mean square).
MAX_NOISE = 0.03
# How far prompts of 32 tokens and more may move the default model's logits (root mean square, and the most at the end
# of a prompt), for sets that compute all of them, or their queries, keys and values, with inputs finer than eight bits.
FINE = {"amx": (0.12, 0.5), "avx512bf16": (0.2, 0.9), "avx2": (0.12, 0.5)}


def _prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(0, 256, (length,), generator=generator).tolist())


def _blocks(first: int, length: int) -> tuple[int, ...]:
    """Every other block, backwards: pages that are nowhere near each other."""
    return tuple(range(first, first + 2 * -(-length // 16), 2))[::-1]


def _assert_close(actual: Tensor, expected: Tensor, max_noise: float = MAX_NOISE) -> None:
    noise = (actual - expected).pow(2).mean().sqrt() / expected.std()
    assert noise < max_noise
    # Where the reference is sure, the choice is the same.
    best = expected.topk(2, dim=-1)
    sure = (best.values[:, 0] - best.values[:, 1]) > 10 * max_noise * expected.std()
    assert torch.equal(actual.argmax(-1)[sure], best.indices[sure, 0])


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_tiny_models_of_every_architecture(isa: str, architecture: str) -> None:
    config, state = tiny_config(architecture), tiny_state(tiny_config(architecture))
    stepper = NativeStepper(config, StateWeights(state), isa)
    for length in (1, 2, 17, 70):
        prompt = _prompt(length)
        actual = stepper.logits(Part(prompt, 0, length, _blocks(3, length)))
        _assert_close(actual, NaiveModel(config, state).logits(prompt))


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32"])
def test_gguf_files_are_read_in_their_own_blocks(isa: str, kind: str, tmp_path: Path) -> None:
    """Against the weights that the blocks stand for; queries and keys come in the file's own row order."""
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", matrix_type=gguf.GGMLQuantizationType[kind]))
    state = {name: checkpoint.weights.read(name) for name in checkpoint.weights.names()}
    stepper = NativeStepper(checkpoint.config, checkpoint.weights, isa)
    prompt = _prompt(40)
    actual = stepper.logits(Part(prompt, 0, 40, _blocks(0, 40)))
    _assert_close(actual, NaiveModel(checkpoint.config, state).logits(prompt))


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_models_of_super_blocks(isa: str, kind: str) -> None:
    """Embedding, output matrix and all linear maps, prefill and decoding."""
    config = replace(TINY_CONFIG, hidden_size=256, intermediate_size=512, num_heads=16, num_kv_heads=8, num_layers=1)
    kinds = {name: kind for name, shape in expected_shapes(config) if len(shape) == 2}
    state = {name: torch.ones(shape) for name, shape in expected_shapes(config)}
    weights = StateWeights(state, kinds)
    stepper, blocks = NativeStepper(config, weights, isa), _blocks(0, 41)
    naive = NaiveModel(config, {name: weights.read(name) for name in weights.names()})
    prompt = _prompt(41)
    parts = [Part(prompt, 0, 40, blocks), Part(prompt, 40, 41, blocks)]
    actual = torch.cat([stepper.logits(part) for part in parts])
    # Random bits have no mean of zero, which makes attention sharp and rounding count for more than in a model.
    _assert_close(actual, naive.logits(prompt), max_noise=0.1)


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 33])
def test_chunks_and_decoding_agree_with_one_prefill(isa: str, chunk: int) -> None:
    stepper = NativeStepper(TINY_CONFIG, StateWeights(tiny_state()), isa)
    prompt, blocks = _prompt(67), _blocks(1, 67)
    parts = [Part(prompt, begin, min(67, begin + chunk), blocks) for begin in range(0, 67, chunk)]
    actual = torch.cat([stepper.logits(part) for part in parts])
    _assert_close(actual, stepper.logits(Part(prompt, 0, 67, _blocks(0, 67))))


def _mixed_step() -> list[Part]:
    """Decoding sequences, then prefills; contexts of the decoding ones have to be there already."""
    decodes = [Part(_prompt(9 + 5 * i, i), 8 + 5 * i, 9 + 5 * i, (i, 20 + i, 40 + i)) for i in range(5)]
    prefills = [Part(_prompt(33, 7), 0, 33, (60, 61, 59)), Part(_prompt(12, 8), 0, 12, (58,))]
    return decodes + prefills


@pytest.mark.parametrize("isa", instruction_sets())
def test_a_mixed_step_is_its_sequences_alone(isa: str) -> None:
    config, state = TINY_CONFIG, tiny_state()
    stepper = NativeStepper(config, StateWeights(state), isa)
    parts = _mixed_step()
    for part in parts:
        if part.begin:
            stepper.logits(Part(part.token_ids, 0, part.begin, part.block_ids))
    actual = stepper.logits(*parts)
    naive = NaiveModel(config, state)
    expected = [naive.logits(part.token_ids[: part.end])[part.begin : part.end] for part in parts]
    _assert_close(actual, torch.cat(expected))


@pytest.mark.parametrize("isa", instruction_sets())
def test_the_number_of_threads_changes_no_bit(isa: str) -> None:
    results = []
    for num_threads, num_spare in ((1, 0), (2, 0), (3, 0), (1, 1), (2, 2)):
        stepper = NativeStepper(
            TINY_CONFIG, StateWeights(tiny_state()), isa, num_threads=num_threads, num_spare_threads=num_spare
        )
        parts = _mixed_step()
        for part in parts:
            if part.begin:
                stepper.logits(Part(part.token_ids, 0, part.begin, part.block_ids))
        results.append([stepper.logits(*parts), *(stepper.logits(part) for part in parts)])
    for others in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], others, strict=True))


@functools.cache
def _default_checkpoint(path: Path) -> Checkpoint:
    return open_checkpoint(path)


@pytest.mark.model
def test_quality_is_not_the_price(default_model_path: Path) -> None:
    """Mean log-likelihood within 0.5 % of float32, computed in chunks of a prefill and of a decode batch."""
    checkpoint = _default_checkpoint(default_model_path)
    config, weights = checkpoint.config, checkpoint.weights
    naive = NaiveModel(config, {name: weights.read(name) for name in weights.names()})
    stepper = NativeStepper(config, weights, instruction_sets()[0])
    texts = held_text(default_model_path)
    expected, actual = [], {512: [], 24: []}  # type: list[Tensor], dict[int, list[Tensor]]
    for token_ids in texts:
        with torch.inference_mode():
            expected.append(log_likelihood(naive.logits(token_ids), token_ids))
        length, blocks = len(token_ids), tuple(range(32))
        for chunk, parts in actual.items():
            logits = [
                stepper.logits(Part(tuple(token_ids), begin, min(length, begin + chunk), blocks))
                for begin in range(0, length, chunk)
            ]
            parts.append(log_likelihood(torch.cat(logits), token_ids))
    reference = torch.cat(expected).mean()
    assert len(torch.cat(expected)) > 1900
    for chunk, parts in actual.items():
        change = (torch.cat(parts).mean() - reference) / reference
        assert change.abs() < 0.005, f"chunks of {chunk}: {change:.4%}"


@pytest.mark.model
@pytest.mark.parametrize("isa", instruction_sets())
def test_default_model_on_every_instruction_set(isa: str, default_model_path: Path) -> None:
    checkpoint = _default_checkpoint(default_model_path)
    config, weights = checkpoint.config, checkpoint.weights
    naive = NaiveModel(config, {name: weights.read(name) for name in weights.names()})
    token_ids = held_text(default_model_path)[0][:100]
    stepper = NativeStepper(config, weights, isa)
    with torch.inference_mode():
        expected = naive.logits(token_ids)
    actual = stepper.logits(Part(tuple(token_ids), 0, 100, _blocks(0, 100)))
    # Eight-bit activations move the logits of this model by 0.2, bfloat16 in torch by 0.12, in pairs or tiles by 0.06.
    assert (actual - expected).pow(2).mean().sqrt() < (FINE[isa][0] if isa in FINE else 0.35)
    best = expected.topk(2, dim=-1)
    sure = (best.values[:, 0] - best.values[:, 1]) > 1.0
    assert sure.sum() > 20
    assert torch.equal(actual.argmax(-1)[sure], best.indices[sure, 0])


@pytest.mark.model
@pytest.mark.parametrize("isa", [isa for isa in instruction_sets() if isa in FINE])
def test_prompts_lead_to_the_answer_of_float32(isa: str, default_model_path: Path) -> None:
    """A near-tie that eight-bit activations decide the other way: the capital of France, asked by the chat template."""
    checkpoint = _default_checkpoint(default_model_path)
    config, weights = checkpoint.config, checkpoint.weights
    naive = NaiveModel(config, {name: weights.read(name) for name in weights.names()})
    with torch.inference_mode():
        expected = naive.logits(CAPITAL_OF_FRANCE)[-1]
    stepper = NativeStepper(config, weights, isa)
    actual = stepper.logits(Part(CAPITAL_OF_FRANCE, 0, len(CAPITAL_OF_FRANCE), _blocks(0, 40)))[-1]
    assert (actual - expected).abs().max() < FINE[isa][1]  # 1.8 in eight bits
    assert actual.argmax() == expected.argmax()


@pytest.mark.model
@pytest.mark.parametrize("isa", [isa for isa in instruction_sets() if isa == "avx512bf16"])
def test_any_number_of_mates_changes_no_bit_of_decoding_without_tiles(isa: str, default_model_path: Path) -> None:
    """Eight bits are faster at every number of rows there, so steps without a prompt's chunk keep to them."""
    checkpoint = _default_checkpoint(default_model_path)
    stepper = NativeStepper(checkpoint.config, checkpoint.weights, isa, num_blocks=64)
    contexts = [Part(_prompt(3 + i % 9, i), 2 + i % 9, 3 + i % 9, (i,)) for i in range(40)]
    for part in contexts:
        stepper.logits(Part(part.token_ids, 0, part.begin, part.block_ids))
    together = stepper.logits(*contexts)
    for part, logits in zip(contexts, together, strict=True):
        assert torch.equal(stepper.logits(part)[0], logits)


@pytest.mark.model
def test_batch_mates_change_no_bit_of_a_decoding_request(default_model_path: Path) -> None:
    """As long as a step has fewer than 32 rows, and its weights are quantised."""
    checkpoint = _default_checkpoint(default_model_path)
    stepper = NativeStepper(checkpoint.config, checkpoint.weights, instruction_sets()[0], num_blocks=64)
    contexts = [Part(_prompt(10 + i, i), 9 + i, 10 + i, (i, 32 + i)) for i in range(20)]
    for part in contexts:
        stepper.logits(Part(part.token_ids, 0, part.begin, part.block_ids))
    together = stepper.logits(*contexts)
    for part, logits in zip(contexts, together, strict=True):
        assert torch.equal(stepper.logits(part)[0], logits)


# "What is the capital of France?" by the default model's chat template, up to where it answers.
# fmt: off
CAPITAL_OF_FRANCE = (
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198,
    1, 520, 9531, 198,
)
# fmt: on
