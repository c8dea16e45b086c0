"""Paged attention against a dense reference that knows no pages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.attention.backend import AttentionBatch
from engine.attention.cache_size import choose_num_blocks, default_cache_bytes
from engine.attention.kv_cache import KvCache
from engine.attention.torch_backend import TorchAttention
from engine.errors import CacheSizeError

CPU = torch.device("cpu")
HEAD_DIM = 16


@dataclass
class Context:
    """One sequence of the test: everything it has, and how much of it is new in this step."""

    q: Tensor  # [S, N, D]
    k: Tensor  # [S, K, D]
    v: Tensor
    num_new: int
    block_ids: list[int]

    @property
    def length(self) -> int:
        return len(self.q)


def _dense(context: Context, window: int | None) -> Tensor:
    """[new, N, D]: the definition, in float64."""
    q, k, v = (x.double() for x in (context.q, context.k, context.v))
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / HEAD_DIM**0.5
    distance = torch.arange(context.length)[:, None] - torch.arange(context.length)
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hij,jhd->ihd", weights, v)[-context.num_new :].float()


class Bench:
    """A cache full of noise, and sequences scattered over its blocks."""

    def __init__(self, block_size: int, num_kv_heads: int, window: int | None = None) -> None:
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.generator = torch.Generator().manual_seed(0)
        self.cache = KvCache(
            num_layers=2,
            num_blocks=256,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=HEAD_DIM,
            dtype=torch.float32,
            device=CPU,
        )
        for tensor in (*self.cache.keys, *self.cache.values):
            tensor.copy_(torch.randn(tensor.shape, generator=self.generator) * 50)
        self.free = torch.randperm(256, generator=self.generator).tolist()
        self.attention = TorchAttention(self.cache, window)
        self.window = window

    def context(self, length: int, num_new: int, num_heads: int) -> Context:
        blocks = [self.free.pop() for _ in range(-(-length // self.block_size))]
        q = torch.randn((length, num_heads, HEAD_DIM), generator=self.generator)
        k, v = (torch.randn((length, self.num_kv_heads, HEAD_DIM), generator=self.generator) for _ in range(2))
        context = Context(q, k, v, num_new, blocks)
        for position in range(length - num_new):
            block, offset = blocks[position // self.block_size], position % self.block_size
            self.cache.keys[1][block, offset] = k[position]
            self.cache.values[1][block, offset] = v[position]
        return context

    def attend(self, contexts: list[Context]) -> list[Tensor]:
        ordered = sorted(contexts, key=lambda context: context.num_new > 1)
        slots = [
            context.block_ids[position // self.block_size] * self.block_size + position % self.block_size
            for context in ordered
            for position in range(context.length - context.num_new, context.length)
        ]
        width = max(len(context.block_ids) for context in ordered)
        self.attention.plan(
            AttentionBatch(
                num_decodes=sum(context.num_new == 1 for context in ordered),
                query_lens=tuple(context.num_new for context in ordered),
                context_lens=tuple(context.length for context in ordered),
                slots=torch.tensor(slots),
                block_tables=torch.tensor(
                    [context.block_ids + [0] * (width - len(context.block_ids)) for context in ordered]
                ),
            )
        )
        q, k, v = (torch.cat([getattr(context, name)[-context.num_new :] for context in ordered]) for name in "qkv")
        rows = torch.split(self.attention.attend(1, q, k, v), [context.num_new for context in ordered])
        return [rows[next(i for i, x in enumerate(ordered) if x is context)] for context in contexts]

    def check(self, contexts: list[Context]) -> None:
        for context, actual in zip(contexts, self.attend(contexts), strict=True):
            torch.testing.assert_close(actual, _dense(context, self.window), rtol=1e-4, atol=1e-5)


SHAPES = [
    pytest.param([(1, 1)], id="first token"),
    pytest.param([(16, 1)], id="block border"),
    pytest.param([(17, 1), (5, 1), (33, 1)], id="decodes"),
    pytest.param([(200, 1), (3, 1), (90, 1), (4, 1)], id="decodes of very different lengths"),
    pytest.param([(40, 40)], id="whole prompt"),
    pytest.param([(40, 7)], id="chunk after a prefix"),
    pytest.param([(64, 16)], id="chunk on block borders"),
    pytest.param([(30, 1), (21, 21), (50, 1), (33, 2), (9, 8)], id="mixed"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (9, 3), (6, 1)])
def test_equals_dense_attention(
    shape: list[tuple[int, int]], block_size: int, num_heads: int, num_kv_heads: int
) -> None:
    if block_size == 1 and sum(length for length, _ in shape) > 250:
        shape = shape[1:]
    bench = Bench(block_size, num_kv_heads)
    bench.check([bench.context(length, num_new, num_heads) for length, num_new in shape])


@pytest.mark.parametrize("window", [1, 5, 16, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_sliding_window(shape: list[tuple[int, int]], window: int) -> None:
    bench = Bench(8, 2, window)
    bench.check([bench.context(length, num_new, 4) for length, num_new in shape])


def test_new_keys_and_values_land_in_their_slots() -> None:
    bench = Bench(8, 2)
    before = [x.clone() for x in (*bench.cache.keys, *bench.cache.values)]
    context = bench.context(20, 3, 4)
    bench.attend([context])
    for position in (17, 18, 19):
        block, offset = context.block_ids[position // 8], position % 8
        assert torch.equal(bench.cache.keys[1][block, offset], context.k[position])
        assert torch.equal(bench.cache.values[1][block, offset], context.v[position])
    assert torch.equal(before[0], bench.cache.keys[0]), "another layer was written"
    changed = (before[1] != bench.cache.keys[1]).flatten(2).any(dim=-1).sum()
    assert changed == 20


def _choose(**changes: int | None) -> int:
    values = {"num_blocks": None, "kv_cache_bytes": None, "max_num_seqs": 4, **changes}
    return choose_num_blocks(
        bytes_per_block=1 << 20,
        block_size=16,
        max_model_len=160,
        device=CPU,
        **values,  # type: ignore[arg-type]
    )


def test_cache_size() -> None:
    assert _choose(num_blocks=12, kv_cache_bytes=1) == 12
    assert _choose(kv_cache_bytes=20 << 20) == 20
    assert _choose() == 40, "never more than the longest sequences can use"
    assert 0 < default_cache_bytes() <= 4 << 30


def test_cache_that_cannot_hold_a_sequence_is_refused() -> None:
    with pytest.raises(
        CacheSizeError, match=r"max_model_len 160 tokens, which takes 10 blocks .* lower max_model_len to 144"
    ):
        _choose(num_blocks=9)
    with pytest.raises(CacheSizeError, match=r"which takes 10 blocks \(10 MiB\): raise kv_cache_memory or num_blocks$"):
        _choose(kv_cache_bytes=100)


def test_cache_that_the_host_cannot_hold_is_refused_before_it_is_touched() -> None:
    with pytest.raises(CacheSizeError, match=r"would take 1073741824 MiB and the host has \d+ MiB free"):
        _choose(num_blocks=1 << 30)
