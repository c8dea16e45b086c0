"""The arithmetic of a GPU's memory, with counters that are written down instead of measured."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.attention.cache_size import CacheNeed, DeviceMemory, check_weights_fit, fill_device
from engine.batch import Batch
from engine.build import build_engine
from engine.config import EngineConfig
from engine.device import choose_dtype, open_device
from engine.errors import CacheSizeError
from engine.gpu_start import out_of_memory
from engine.memory_profile import MemoryProfile, decode_batch, largest_batch
from tests.support.own_records import own_records
from tests.support.tiny_model import write_huggingface_directory

GIB = 1 << 30
MIB = 1 << 20
# A device of 80 GiB on which the weights take 16 and the largest step 3 more.
MEMORY = DeviceMemory(
    total=80 * GIB, free=60 * GIB, reserved=18 * GIB, peak=19 * GIB, outside_torch=1 * GIB, graphs=GIB // 2
)
NEED = CacheNeed(bytes_per_block=2 * MIB, block_size=16, max_model_len=4096)


def test_the_cache_gets_what_is_left_of_the_share() -> None:
    assert MEMORY.used == 20.5 * GIB
    assert MEMORY.left(0.9) == int(80 * GIB * 0.9) - 20.5 * GIB
    assert fill_device(MEMORY, 0.9, NEED) == int(51.5 * 512)


def test_and_never_more_than_is_really_free() -> None:
    """Another process holds half of the device; the step needs a GiB more than torch holds now."""
    crowded = replace(MEMORY, free=20 * GIB)
    assert crowded.left(0.9) == 20 * GIB - 1 * GIB - GIB // 2
    assert replace(crowded, peak=10 * GIB).left(0.9) == 20 * GIB - GIB // 2, "what torch holds and does not need"


def test_a_cache_for_no_sequence_is_refused_with_flag_need_and_have() -> None:
    with pytest.raises(CacheSizeError) as caught:
        fill_device(MEMORY, 0.26, NEED)
    assert str(caught.value) == (
        "--gpu-memory-utilization 0.26 lets this rank use 21299 MiB of the device's 81920 MiB; weights, the largest "
        "step and decode graphs take 20992 MiB, the driver and other processes 1024 MiB, which leaves 307 MiB for the "
        "KV cache, and one sequence of --max-model-len 4096 needs 512 MiB: raise --gpu-memory-utilization (at most 1), "
        "lower --max-model-len to 2448 or less, lower --max-num-batched-tokens or --max-num-seqs, or free the device"
    )
    with pytest.raises(CacheSizeError, match="which leaves 0 MiB for the KV cache") as caught:
        fill_device(MEMORY, 0.2, NEED)
    assert "--max-model-len to" not in str(caught.value)


def test_weights_that_cannot_fit_are_refused_before_they_are_loaded() -> None:
    check_weights_fit(16 * GIB, free=20 * GIB, total=24 * GIB, utilization=0.9)
    with pytest.raises(CacheSizeError, match="weights take 22528 MiB, the device has 23552 MiB of 24576 MiB free, and"):
        check_weights_fit(22 * GIB, free=23 * GIB, total=24 * GIB, utilization=0.9)
    with pytest.raises(CacheSizeError, match="the device has 10240 MiB of 24576 MiB free"):
        check_weights_fit(16 * GIB, free=10 * GIB, total=24 * GIB, utilization=0.9)


class WrittenCounters:
    """80 GiB. Loading takes 16 GiB, a step some more for a while, and libraries half a GiB outside torch."""

    def __init__(self) -> None:
        self.weights = 0
        self.in_step = 0
        self.outside = 0
        self._peak = 0

    def total(self) -> int:
        return 80 * GIB

    def free(self) -> int:
        return 79 * GIB - self.reserved() - self.outside

    def reserved(self) -> int:
        return self.weights and self.weights + GIB // 4  # the allocator rounds up

    def allocated(self) -> int:
        return self.weights

    def peak_allocated(self) -> int:
        return self._peak

    def reset_peak(self) -> None:
        self._peak = self.weights

    def step(self, num_bytes: int) -> None:
        self._peak = max(self._peak, self.weights + num_bytes)
        self.outside = GIB // 2


@pytest.mark.parametrize("graphs", [(), (1, 2, 4)])
def test_a_profile_tells_weights_steps_graphs_and_libraries_apart(graphs: tuple[int, ...]) -> None:
    counters = WrittenCounters()
    profile = MemoryProfile(counters)
    counters.weights = 16 * GIB
    ran: list[int] = []

    def run(batch: Batch) -> None:
        ran.append(len(batch.scheduled))
        counters.step(3 * GIB if len(ran) == 1 else GIB // 8)

    largest = largest_batch(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=100, block_size=16)
    memory = profile.measure(run, largest, graphs)
    assert ran == ([8, 4] if graphs else [8])
    assert (memory.peak, memory.reserved, memory.outside_torch) == (19 * GIB, 16.25 * GIB, GIB // 2)
    assert memory.graphs == (GIB // 8 + 3 * (8 << 20) if graphs else 0)
    assert profile.free_before == 79 * GIB


@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "lengths"),
    [
        (4, 64, 100, [16, 16, 16, 16]),
        (4, 66, 100, [17, 17, 16, 16]),
        (1, 64, 100, [64]),
        (2, 64, 10, [10, 10]),
        (64, 64, 100, [1] * 64),
    ],
)
def test_the_largest_step(
    max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, lengths: list[int]
) -> None:
    batch = largest_batch(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=16,
    )
    assert [item.num_new_tokens for item in batch.scheduled] == lengths
    assert all(item.samples for item in batch.scheduled)


def test_the_profiles_batches_run_on_a_cache_of_one_block(tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path / "tiny")
    config = EngineConfig(directory, dtype="float32", num_threads=1, num_blocks=1, max_model_len=16)
    runner = build_engine(config).core._runner
    largest = largest_batch(max_num_seqs=3, max_num_batched_tokens=100, max_model_len=200, block_size=16)
    assert len(runner.execute(largest)) == 3
    assert len(runner.execute(decode_batch(5))) == 5


def test_a_devices_refusal_becomes_advice() -> None:
    with (
        pytest.raises(CacheSizeError, match=r"^lower --this \(CUDA out of memory\. Tried to allocate 2 GiB\)$"),
        out_of_memory("lower --this"),
    ):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")


# --- device and dtype ---


def test_auto_takes_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert open_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert open_device("auto") == torch.device("cuda", 0)
    assert open_device("cpu") == torch.device("cpu")


def test_auto_dtype_is_what_the_gpu_multiplies(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_dtype("auto", device) is torch.bfloat16
    assert choose_dtype("float32", device) is torch.float32
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_dtype("auto", device) is torch.float16
    assert "compute capability 7.5 has no bfloat16" in own_records(caplog)[0].getMessage()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization: 0.0 is no share"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization: 1.5 is no share"),
        ({"max_cudagraph_capture_size": 0}, "max_cudagraph_capture_size: 0 is below 1"),
        ({"attention_backend": "fast"}, "attention_backend: 'fast' is unknown; choose one of auto, flash, torch"),
        ({"attention_backend": "flash"}, "attention_backend: 'flash' needs a GPU"),
    ],
)
def test_values_that_cannot_work_are_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EngineConfig(Path("/m"), **changes)  # type: ignore[arg-type]
