"""Flash attention against torch attention, one layer alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch

from benchmarks.device.place import CheckFailedError, CheckSkippedError, Place
from engine.attention.backend import AttentionBatch
from engine.attention.choice import find_flash
from engine.attention.flash_backend import FlashAttention
from engine.attention.flash_functions import FlashFunctions
from engine.attention.kv_cache import KvCache
from engine.attention.torch_backend import TorchAttention
from engine.errors import DeviceError

# Of one attention output in bfloat16, whose inputs are about 1.
TOLERANCE = 2e-2


def flash_attention_alone(place: Place) -> str:
    """Flash against torch attention on one layer, over random mixed batches."""
    draw = random.Random(0)
    worst, num_batches = 0.0, 0
    for num_heads, num_kv_heads, head_dim, block_size, window in (
        (4, 4, 64, 16, None),
        (32, 8, 128, 16, None),
        (9, 3, 64, 32, None),
        (16, 2, 128, 16, 70),
        (8, 1, 256, 16, None),
        (14, 2, 64, 16, 1),
    ):
        bench = _AttentionBench(place, num_heads, num_kv_heads, head_dim, block_size, window)
        for kind in ("decode", "prefill", "chunks", "mixed"):
            worst = max(worst, bench.difference(kind, draw))
            num_batches += 1
    if not worst <= TOLERANCE:
        raise CheckFailedError(f"outputs differ by up to {worst:.4f}, more than {TOLERANCE}")
    return f"{num_batches} batches, largest difference {worst:.4f}"


def flash_functions(place: Place, head_dim: int, block_size: int) -> FlashFunctions:
    dtype = torch.bfloat16 if place.half["dtype"] == "bfloat16" else torch.float16
    try:
        found = find_flash("flash", device=place.device, dtype=dtype, head_dim=head_dim, block_size=block_size)
    except DeviceError as error:
        raise CheckSkippedError(str(error)) from error
    assert found is not None, "asked for by name, it is there or an error"
    return found


class _AttentionBench:
    """Both backends over equal caches in half precision."""

    def __init__(
        self, place: Place, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, window: int | None
    ) -> None:
        self._functions = flash_functions(place, head_dim, block_size)
        self._generator = torch.Generator().manual_seed(head_dim + num_heads)
        self._place = place
        self._num_heads, self._num_kv_heads, self._head_dim = num_heads, num_kv_heads, head_dim
        self._block_size = block_size
        self._num_blocks = 4096 // block_size
        self._dtype = torch.bfloat16 if place.half["dtype"] == "bfloat16" else torch.float16
        caches = [self._cache() for _ in range(2)]
        for tensor, twin in zip(
            (*caches[0].keys, *caches[0].values), (*caches[1].keys, *caches[1].values), strict=True
        ):
            twin.copy_(tensor)
        self._flash = FlashAttention(
            caches[0], self._functions, max_num_seqs=32, max_model_len=4096, sliding_window=window
        )
        self._torch = TorchAttention(caches[1], window)

    def difference(self, kind: str, draw: random.Random) -> float:
        """The largest between the outputs of one batch; NaN when one of them is not finite."""
        lengths = []
        for _ in range(draw.randint(2, 12)):
            context = draw.choice([1, 15, 16, 17, 255, 256, 257, draw.randint(1, 300)])
            new = {"decode": 1, "prefill": context, "chunks": draw.randint(1, context)}.get(kind)
            lengths.append((context, new if new is not None else draw.choice([1, context, draw.randint(1, context)])))
        lengths.sort(key=lambda pair: pair[1] > 1)
        batch = self._batch(lengths, draw.sample(range(self._num_blocks), self._num_blocks))
        num_tokens = sum(batch.query_lens)
        fused = self._noise(num_tokens, self._num_heads + 2 * self._num_kv_heads, self._head_dim)
        q, k, v = torch.split(fused, [self._num_heads, self._num_kv_heads, self._num_kv_heads], dim=1)
        outputs = []
        with torch.inference_mode():
            for attention in (self._flash, self._torch):
                attention.plan(batch)
                outputs.append(attention.attend(0, q, k, v).float())
        worst = float((outputs[0] - outputs[1]).abs().max())
        return worst if math.isfinite(worst) else math.nan

    def _batch(self, lengths: Sequence[tuple[int, int]], free: list[int]) -> AttentionBatch:
        size, device = self._block_size, self._place.device
        tables = [[free.pop() for _ in range(-(-context // size))] for context, _ in lengths]
        slots = [
            table[position // size] * size + position % size
            for table, (context, new) in zip(tables, lengths, strict=True)
            for position in range(context - new, context)
        ]
        width = max(map(len, tables))
        return AttentionBatch(
            num_decodes=sum(new == 1 for _, new in lengths),
            query_lens=tuple(new for _, new in lengths),
            context_lens=tuple(context for context, _ in lengths),
            slots=torch.tensor(slots, device=device),
            block_tables=torch.tensor([table + [0] * (width - len(table)) for table in tables], device=device),
        )

    def _cache(self) -> KvCache:
        cache = KvCache(
            num_layers=1,
            num_blocks=self._num_blocks,
            block_size=self._block_size,
            num_kv_heads=self._num_kv_heads,
            head_dim=self._head_dim,
            dtype=self._dtype,
            device=self._place.device,
            has_scratch=True,
        )
        for tensor in (*cache.keys, *cache.values):
            tensor.copy_(self._noise(*tensor.shape))
        return cache

    def _noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self._dtype).to(self._place.device)
