"""The whole engine on the flash backend, with and without recorded decode steps, token for token.

The kernels are plain implementations of the same functions, a recording is the work itself done again on the same
memory: what is proven is everything around them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import build
from engine.build import BuiltEngine, build_engine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.model.config import ModelConfig
from engine.request import Request, SamplingParams, StopConditions
from engine.runner.decode_graphs import DecodeGraphs, Replay, bucket_of, decode_buckets
from engine.runner.model_runner import ModelRunner
from tests.support.naive_model import NaiveModel
from tests.support.plain_flash_attn import PLAIN_FLASH
from tests.support.tiny_model import TINY_CONFIG, tiny_config, tiny_state, write_huggingface_directory

NUM_TOKENS = 20
MANY_TOKENS = 50  # more than two blocks, so that running sequences ask for memory
ARCHITECTURES = ["llama", "mistral", "qwen3"]


class RepeatingRecorder:
    """Keeps the work and does it again."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_repeated = 0

    def record(self, work: Replay) -> Replay:
        self.num_recorded += 1
        work()

        def repeat() -> torch.Tensor:
            self.num_repeated += 1
            return work()

        return repeat


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    return {name: write_huggingface_directory(base / name, tiny_config(name)) for name in ARCHITECTURES}


@pytest.fixture(autouse=True)
def _flash_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_flash", lambda *names, **values: PLAIN_FLASH)


def _build(directory: Path, *, graphs: bool = False, **changes: Any) -> tuple[BuiltEngine, RepeatingRecorder]:
    values: dict[str, Any] = {
        "dtype": "float32",
        "num_threads": 1,
        "num_blocks": 64,
        "max_model_len": 128,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 32,
    }
    config = EngineConfig(directory, **(values | changes))
    built = build_engine(config)
    recorder = RepeatingRecorder()
    if graphs:
        runner: Any = built.core._runner
        assert isinstance(runner, ModelRunner)
        decode = DecodeGraphs(runner._model, runner._attention, recorder, decode_buckets(config.max_num_seqs, 4))  # type: ignore[arg-type]
        decode.capture()
        runner._decode_graphs = decode
    return built, recorder


def _prompt(length: int, seed: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(100 * seed + length)
    return tuple(torch.randint(0, 256, (length,), generator=generator).tolist())


def _run(
    core: EngineCore, prompts: list[tuple[int, ...]], temperature: float = 0.0, num_tokens: int = NUM_TOKENS
) -> list[list[int]]:
    stop = StopConditions(max_tokens=num_tokens, ignore_eos=True)
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=temperature, seed=index, top_k=0)
        core.add(Request(str(index), prompt, sampling=sampling, stop=stop))
    tokens: list[list[int]] = [[] for _ in prompts]
    while core.has_work:
        for output in core.step().outputs:
            tokens[int(output.request_id)] += output.token_ids
        core.check()
    return tokens


def _expected(
    config: ModelConfig, prompts: list[tuple[int, ...]], temperature: float = 0.0, num_tokens: int = NUM_TOKENS
) -> list[list[int]]:
    naive = NaiveModel(config, tiny_state(config))
    return [
        naive.generate(prompt, num_tokens, temperature=temperature, seed=seed) for seed, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tokens_are_those_of_the_definition(directories: dict[str, Path], architecture: str, graphs: bool) -> None:
    """More requests than run at a time, prompts of all lengths, chunks: pure and mixed steps, full and padded ones."""
    built, recorder = _build(directories[architecture], graphs=graphs)
    assert built.attention_backend == "flash"
    prompts = [_prompt(length, seed) for seed, length in enumerate((1, 5, 16, 17, 33, 60, 2, 9))]
    assert _run(built.core, prompts) == _expected(tiny_config(architecture), prompts)
    assert bool(recorder.num_repeated) == graphs


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_preemption(directories: dict[str, Path], graphs: bool, temperature: float) -> None:
    built, _ = _build(directories["llama"], graphs=graphs, num_blocks=8)
    prompts = [_prompt(10, seed) for seed in range(5)]
    expected = _expected(TINY_CONFIG, prompts, temperature, MANY_TOKENS)
    assert _run(built.core, prompts, temperature, MANY_TOKENS) == expected
    assert built.core.load().preemptions_total > 0, "the pool was large enough"


def test_prefix_cache(directories: dict[str, Path]) -> None:
    built, _ = _build(directories["llama"], graphs=True)
    prompts = [_prompt(50, 1)]
    assert _run(built.core, prompts) == _run(built.core, prompts) == _expected(TINY_CONFIG, prompts)
    assert built.core.load().prefix_cache_hits_total == 48


def test_batches_beyond_the_largest_recording_run_without_one(directories: dict[str, Path]) -> None:
    built, recorder = _build(directories["llama"], graphs=True)
    assert recorder.num_recorded == 3  # 1, 2, 4
    prompts = [_prompt(3, seed) for seed in range(6)]
    assert _run(built.core, prompts) == _expected(TINY_CONFIG, prompts)
    assert recorder.num_repeated == 0


def test_recording_reports_how_far_it_is(directories: dict[str, Path]) -> None:
    built, _ = _build(directories["llama"])
    runner: Any = built.core._runner
    seen: list[tuple[int, int]] = []
    graphs = DecodeGraphs(runner._model, runner._attention, RepeatingRecorder(), (1, 2, 4))
    graphs.capture(lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("max_num_seqs", "max_capture_size", "buckets"),
    [
        (1, 256, (1,)),
        (2, 256, (1, 2)),
        (6, 256, (1, 2, 4, 6)),
        (64, 256, (1, 2, 4, 8, 16, 24, 32, 48, 64)),
        (100, 256, (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)),
        (1000, 40, (1, 2, 4, 8, 16, 24, 32, 40)),
    ],
)
def test_buckets(max_num_seqs: int, max_capture_size: int, buckets: tuple[int, ...]) -> None:
    assert decode_buckets(max_num_seqs, max_capture_size) == buckets


def test_every_batch_gets_the_smallest_bucket_that_holds_it() -> None:
    buckets = decode_buckets(300, 256)
    for num_rows in range(1, 257):
        size = bucket_of(num_rows, buckets)
        assert size >= num_rows
        assert not [other for other in buckets if num_rows <= other < size]
        assert size <= 2 * num_rows
