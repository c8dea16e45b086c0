"""The flash backend's metadata, through plain implementations of the functions it calls."""

from __future__ import annotations

import inspect
import random
import sys
import types

import pytest
import torch

from engine.attention import choice
from engine.attention.backend import AttentionBatch
from engine.attention.flash_backend import FlashAttention, why_not_flash
from engine.attention.flash_functions import FlashUnavailableError, load_flash_functions
from engine.attention.kv_cache import KvCache
from engine.attention.torch_backend import TorchAttention
from engine.errors import DeviceError
from tests.support import plain_flash_attn
from tests.support.own_records import own_records
from tests.support.plain_flash_attn import PLAIN_FLASH

CPU = torch.device("cpu")
CUDA = torch.device("cuda", 0)
HEAD_DIM = 16
NUM_BLOCKS = 96
MAX_MODEL_LEN = 300
MAX_NUM_SEQS = 8


class Pair:
    """Both backends over caches with the same noise."""

    def __init__(self, block_size: int, num_kv_heads: int, window: int | None) -> None:
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.generator = torch.Generator().manual_seed(1)
        self.caches = [self._cache() for _ in range(2)]
        for name in ("keys", "values"):
            for mine, theirs in zip(getattr(self.caches[0], name), getattr(self.caches[1], name), strict=True):
                mine.copy_(torch.randn(mine.shape, generator=self.generator) * 5)
                theirs.copy_(mine)
        self.flash = FlashAttention(
            self.caches[0],
            PLAIN_FLASH,
            max_num_seqs=MAX_NUM_SEQS,
            max_model_len=MAX_MODEL_LEN,
            sliding_window=window,
        )
        self.torch = TorchAttention(self.caches[1], window)

    def batch(self, lengths: list[tuple[int, int]], free: list[int]) -> AttentionBatch:
        """`lengths` are (context, new) of each sequence, those with one new token first."""
        tables = [[free.pop() for _ in range(-(-context // self.block_size))] for context, _ in lengths]
        slots = [
            table[position // self.block_size] * self.block_size + position % self.block_size
            for table, (context, new) in zip(tables, lengths, strict=True)
            for position in range(context - new, context)
        ]
        width = max(map(len, tables))
        return AttentionBatch(
            num_decodes=sum(new == 1 for _, new in lengths),
            query_lens=tuple(new for _, new in lengths),
            context_lens=tuple(context for context, _ in lengths),
            slots=torch.tensor(slots),
            block_tables=torch.tensor([table + [0] * (width - len(table)) for table in tables]),
        )

    def inputs(self, num_tokens: int, num_heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v as the model hands them over: views of one larger tensor."""
        heads = num_heads + 2 * self.num_kv_heads
        fused = torch.randn((num_tokens, heads, HEAD_DIM), generator=self.generator)
        q, k, v = torch.split(fused, [num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        return q, k, v

    def check_same_caches(self) -> None:
        for name in ("keys", "values"):
            for mine, theirs in zip(getattr(self.caches[0], name), getattr(self.caches[1], name), strict=True):
                assert torch.equal(mine[:NUM_BLOCKS], theirs[:NUM_BLOCKS])

    def _cache(self) -> KvCache:
        return KvCache(
            num_layers=2,
            num_blocks=NUM_BLOCKS,
            block_size=self.block_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=HEAD_DIM,
            dtype=torch.float32,
            device=CPU,
            has_scratch=True,
        )


def _random_lengths(draw: random.Random) -> list[tuple[int, int]]:
    """Decoding, whole prompts, chunks and mixtures of them; at least one sequence."""
    lengths = []
    for _ in range(draw.randint(1, MAX_NUM_SEQS)):
        context = draw.choice([1, 2, 15, 16, 17, 31, 32, 33, draw.randint(1, 120), draw.randint(1, 150)])
        new = draw.choice([1, 1, 1, context, draw.randint(1, context)])
        lengths.append((context, new))
    return sorted(lengths, key=lambda pair: pair[1] > 1)


@pytest.mark.parametrize("window", [None, 1, 7, 16, 100])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (9, 3), (6, 1)])
@pytest.mark.parametrize("block_size", [16, 32])
def test_equals_the_torch_backend(block_size: int, num_heads: int, num_kv_heads: int, window: int | None) -> None:
    """Step after step on the same metadata buffers, so that what one leaves behind meets the next."""
    draw = random.Random(block_size * num_heads + (window or 0))
    pair = Pair(block_size, num_kv_heads, window)
    for _ in range(12):
        batch = pair.batch(_random_lengths(draw), draw.sample(range(NUM_BLOCKS), NUM_BLOCKS))
        q, k, v = pair.inputs(sum(batch.query_lens), num_heads)
        pair.flash.plan(batch)
        pair.torch.plan(batch)
        actual = pair.flash.attend(1, q, k, v)
        torch.testing.assert_close(actual, pair.torch.attend(1, q, k, v), rtol=1e-4, atol=1e-4)
        pair.check_same_caches()


def test_rows_added_to_a_decode_step_touch_nobody() -> None:
    draw = random.Random(5)
    pair = Pair(16, 2, None)
    for num_rows in (1, 3, 5, 8, 2):
        lengths = [(draw.randint(1, 150), 1) for _ in range(num_rows)]
        batch = pair.batch(lengths, draw.sample(range(NUM_BLOCKS), NUM_BLOCKS))
        q, k, v = pair.inputs(MAX_NUM_SEQS, 4)
        pair.flash.plan_padded(batch, MAX_NUM_SEQS)
        pair.torch.plan(batch)
        actual = pair.flash.attend(0, q, k, v)
        assert actual.shape == q.shape
        expected = pair.torch.attend(0, q[:num_rows], k[:num_rows], v[:num_rows])
        torch.testing.assert_close(actual[:num_rows], expected, rtol=1e-4, atol=1e-4)
        assert actual.isfinite().all()
        pair.check_same_caches()


def test_a_decode_steps_metadata_stays_where_it_is() -> None:
    """A CUDA graph reads the addresses that were there when it was captured."""
    seen: list[tuple[int, int]] = []

    def with_kvcache(q: torch.Tensor, *rest: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        seen.append((options["cache_seqlens"].data_ptr(), options["block_table"].data_ptr()))
        return torch.zeros_like(q)

    pair = Pair(16, 2, None)
    functions = types.SimpleNamespace(varlen=PLAIN_FLASH.varlen, with_kvcache=with_kvcache)
    flash = FlashAttention(pair.caches[0], functions, max_num_seqs=4, max_model_len=MAX_MODEL_LEN)  # type: ignore[arg-type]
    for lengths in ([(20, 1)], [(3, 1), (90, 1)], [(150, 1)] * 3):
        flash.plan(pair.batch(lengths, list(range(NUM_BLOCKS))))
        flash.attend(0, *pair.inputs(len(lengths), 4))
    assert len(set(seen)) == 1


# --- which backend serves ---


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"dtype": torch.float16, "head_dim": 256, "block_size": 32}, None),
        ({"device": CPU}, "needs a CUDA device, and this engine computes on cpu"),
        ({"capability": (7, 5)}, "this GPU has 7.5"),
        ({"dtype": torch.float32}, "dtype is float32"),
        ({"head_dim": 264}, "this model has 264"),
        ({"head_dim": 100}, "this model has 100"),
        ({"block_size": 8}, "block_size that is a multiple of 16, and it is 8"),
    ],
)
def test_what_the_kernels_can(changes: dict[str, object], said: str | None) -> None:
    values = {"device": CUDA, "capability": (9, 0), "dtype": torch.bfloat16, "head_dim": 128, "block_size": 16}
    reason = why_not_flash(**(values | changes))  # type: ignore[arg-type]
    assert reason is None if said is None else reason is not None and said in reason


def _find(name: str) -> object:
    return choice.find_flash(name, device=CUDA, dtype=torch.bfloat16, head_dim=64, block_size=16)


def test_without_the_package_a_gpu_is_served_by_torch_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "vllm_flash_attn", None)
    assert _find("auto") is None
    (record,) = own_records(caplog)
    assert "vllm_flash_attn is not installed" in record.getMessage()
    assert "pip install 'vllm-flash-attn==2.6.2'" in record.getMessage()
    with pytest.raises(DeviceError, match=r"attention_backend: 'flash' cannot be used: vllm_flash_attn is not"):
        _find("flash")


def test_float32_on_a_gpu_is_served_by_torch(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    found = choice.find_flash("auto", device=CUDA, dtype=torch.float32, head_dim=64, block_size=16)
    assert found is None
    assert "dtype is float32" in own_records(caplog)[0].getMessage()


def test_a_cpu_or_torch_by_name_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    assert _find("torch") is None
    assert choice.find_flash("auto", device=CPU, dtype=torch.bfloat16, head_dim=64, block_size=16) is None
    assert own_records(caplog) == []


def test_the_packages_functions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(sys.modules, "vllm_flash_attn", plain_flash_attn)
    assert _find("auto") == PLAIN_FLASH


def test_a_package_for_another_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> types.ModuleType:
        raise ImportError("undefined symbol: _ZN3c10")

    monkeypatch.setattr("engine.attention.flash_functions.importlib.import_module", fail)
    with pytest.raises(FlashUnavailableError, match=r"does not load with torch .*undefined symbol.*torch 2\.4\.0"):
        load_flash_functions()


def test_the_stand_ins_have_the_packages_signatures() -> None:
    """Where the package can be imported, also on a machine without a GPU."""
    package = pytest.importorskip("vllm_flash_attn", exc_type=ImportError)
    for name in ("flash_attn_varlen_func", "flash_attn_with_kvcache"):
        real, plain = (inspect.signature(getattr(module, name)) for module in (package, plain_flash_attn))
        assert [(p.name, p.kind, p.default) for p in real.parameters.values()] == [
            (p.name, p.kind, p.default) for p in plain.parameters.values()
        ]
