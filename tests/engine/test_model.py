"""The transformer against transformers' own, and against the oracle, for each architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from engine.attention.backend import AttentionBatch
from engine.attention.kv_cache import KvCache
from engine.attention.torch_backend import TorchAttention
from engine.errors import CheckpointError
from engine.model.config import ExpertConfig, ModelConfig, RopeConfig, RopeKind
from engine.model.layers import Linear
from engine.model.llama import Llama
from engine.model.random_weights import RandomWeights
from tests.support.naive_model import NaiveModel
from tests.support.tiny_model import MIXTURES, TINY_CONFIG, tiny_config, tiny_state, write_huggingface_directory

CPU = torch.device("cpu")
LLAMA3 = replace(
    TINY_CONFIG, rope=RopeConfig(theta=10000.0, kind=RopeKind.LLAMA3, factor=8.0, original_max_position=32)
)
LINEAR = replace(TINY_CONFIG, rope=RopeConfig(kind=RopeKind.LINEAR, factor=4.0))
BIASED = replace(TINY_CONFIG, qkv_bias=True, output_bias=True, mlp_bias=True)
CONFIGS = {
    "llama": TINY_CONFIG,
    "llama3 rope": LLAMA3,
    "linear rope": LINEAR,
    "biased llama": BIASED,
    **{name: tiny_config(name) for name in ("mistral", "qwen2", "qwen3", *MIXTURES)},
    "mixtral with a window": replace(tiny_config("mixtral"), sliding_window=24),
    "qwen3_moe, weights as they are": replace(
        tiny_config("qwen3_moe"),
        experts=ExpertConfig(num_experts=10, num_active=3, intermediate_size=32, normalised=False),
    ),
    "qwen3_moe, one expert": replace(
        tiny_config("qwen3_moe"),
        experts=ExpertConfig(num_experts=5, num_active=1, intermediate_size=32, normalised=True),
    ),
}


def _prompt(length: int = 60) -> list[int]:
    return torch.randint(0, 260, (length,), generator=torch.Generator().manual_seed(1)).tolist()


def _logits(config: ModelConfig, token_ids: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """[tokens, V] in one forward pass over one sequence."""
    model = Llama(config, RandomWeights(config), dtype, CPU)
    num_blocks = -(-len(token_ids) // 16)
    cache = KvCache(
        num_layers=config.num_layers,
        num_blocks=num_blocks,
        block_size=16,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
        device=CPU,
    )
    attention = TorchAttention(cache, config.sliding_window)
    positions = torch.arange(len(token_ids))
    length = (len(token_ids),)
    with torch.inference_mode():
        attention.plan(AttentionBatch(0, length, length, positions, torch.arange(num_blocks)[None]))
        return model.logits(model.forward(torch.tensor(token_ids), positions, attention))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_logits_equal_the_oracles(config: ModelConfig) -> None:
    expected = NaiveModel(config, tiny_state(config)).logits(_prompt())
    torch.testing.assert_close(_logits(config, _prompt()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_logits_equal_those_of_transformers(config: ModelConfig, tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path, config)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        expected = reference(torch.tensor([_prompt()])).logits[0]
    torch.testing.assert_close(_logits(config, _prompt()), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close(dtype: torch.dtype) -> None:
    exact = _logits(TINY_CONFIG, _prompt()).log_softmax(dim=-1)
    close = _logits(TINY_CONFIG, _prompt(), dtype).float().log_softmax(dim=-1)
    assert (exact - close).abs().max() < 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_products_equal_plain_ones(dtype: torch.dtype, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn((192, 128), generator=generator) / 11).to(dtype)
    bias = torch.randn(192, generator=generator).to(dtype) if with_bias else None
    x = torch.randn((5, 128), generator=generator).to(dtype)
    expected = torch.nn.functional.linear(x.float(), weight.float(), None if bias is None else bias.float())
    with torch.inference_mode():
        actual = Linear(weight, bias)(x)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.float(), expected, rtol=1e-2, atol=2e-2)


def test_progress_counts_layers() -> None:
    seen: list[tuple[int, int]] = []
    Llama(TINY_CONFIG, RandomWeights(TINY_CONFIG), torch.float32, CPU, lambda *counts: seen.append(counts))
    assert seen == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers: 0 is outside"),
        ({"num_kv_heads": 3}, "not a multiple of num_kv_heads 3"),
        ({"head_dim": 15}, "head_dim: 15 is odd"),
        ({"sliding_window": 0}, "sliding_window: 0"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rope": RopeConfig(theta=-1.0)}, "rope_theta"),
    ],
)
def test_impossible_configurations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        replace(TINY_CONFIG, **changes)
