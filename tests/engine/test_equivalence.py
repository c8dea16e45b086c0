"""Whatever the engine does for speed, the tokens are those of a loop that recomputes everything.

The rows of the matrix: chunk sizes, batch mates and their order, block sizes, preemption, prefix cache, ends at
block borders, seeds, continuation. All in float32 on the tiny model, token ids compared exactly.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.build import BuiltEngine, Phase, build_engine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import CacheSizeError, CheckpointError, DeviceError
from engine.request import FinishReason, Output, Request, SamplingParams, StopConditions
from tests.support.naive_model import NaiveModel
from tests.support.tiny_model import (
    EOS_TOKEN_ID,
    MIXTURES,
    TINY_CONFIG,
    tiny_config,
    tiny_state,
    write_huggingface_directory,
)

GREEDY = SamplingParams(temperature=0.0)
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_huggingface_directory(tmp_path_factory.mktemp("tiny"))


@functools.cache
def _naive() -> NaiveModel:
    return NaiveModel(TINY_CONFIG, tiny_state())


def _prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(0, 256, (length,), generator=generator).tolist())


@functools.cache
def _expected(
    prompt: tuple[int, ...], num_tokens: int = NUM_TOKENS, temperature: float = 0.0, seed: int = 0
) -> tuple[int, ...]:
    return tuple(_naive().generate(prompt, num_tokens, temperature=temperature, seed=seed))


def _build(directory: Path, **changes: Any) -> BuiltEngine:
    values: dict[str, Any] = {
        "dtype": "float32",
        "num_threads": 1,
        "num_blocks": 64,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
    }
    return build_engine(EngineConfig(directory, **(values | changes)))


def _request(request_id: str, prompt: tuple[int, ...], **changes: Any) -> Request:
    values: dict[str, Any] = {
        "sampling": GREEDY,
        "stop": StopConditions(max_tokens=NUM_TOKENS, ignore_eos=True),
    }
    return Request(request_id, prompt, **(values | changes))


def _run(core: EngineCore, *requests: Request) -> dict[str, list[Output]]:
    """All outputs by request id; the books are checked after every step."""
    for request in requests:
        core.add(request)
    outputs: dict[str, list[Output]] = {request.request_id: [] for request in requests}
    while core.has_work:
        for output in core.step().outputs:
            outputs[output.request_id].append(output)
        core.check()
    assert all(parts[-1].finish_reason is not None for parts in outputs.values())
    return outputs


def _tokens(outputs: list[Output]) -> tuple[int, ...]:
    return tuple(token_id for output in outputs for token_id in output.token_ids)


@pytest.mark.parametrize("max_num_batched_tokens", [1, 2, 7, 16, 17, 512])
def test_chunk_sizes(tiny_directory: Path, max_num_batched_tokens: int) -> None:
    core = _build(tiny_directory, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=1).core
    for length in (1, 15, 16, 17, 50):
        prompt = _prompt(length)
        assert _tokens(_run(core, _request("r", prompt))["r"]) == _expected(prompt), length


@pytest.mark.parametrize("block_size", [1, 4, 16, 32, 100])
def test_block_sizes(tiny_directory: Path, block_size: int) -> None:
    core = _build(tiny_directory, block_size=block_size, num_blocks=-(-512 // block_size)).core
    prompts = [_prompt(length) for length in (1, 16, 33, 70)]
    outputs = _run(core, *[_request(str(i), prompt) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert _tokens(outputs[str(i)]) == _expected(prompt)


@pytest.mark.parametrize("num_mates", [1, 2, 5, 16])
@pytest.mark.parametrize("reverse", [False, True])
def test_batch_mates_and_their_order(tiny_directory: Path, num_mates: int, reverse: bool) -> None:
    core = _build(tiny_directory).core
    prompts = {str(i): _prompt(3 + 7 * i % 60, seed=i) for i in range(num_mates)}
    order = sorted(prompts, reverse=reverse)
    outputs = _run(core, *[_request(name, prompts[name]) for name in order])
    for name, prompt in prompts.items():
        assert _tokens(outputs[name]) == _expected(prompt), name


def test_mates_that_come_and_go(tiny_directory: Path) -> None:
    """A request joins every other step, and some are aborted; nobody else notices."""
    core = _build(tiny_directory).core
    tokens: dict[str, list[int]] = {}
    for step in range(30):
        if step % 2 == 0:
            name = str(step // 2)
            core.add(_request(name, _prompt(5 + step, seed=step // 2)))
            tokens[name] = []
        if step % 10 == 9:
            victim = str(step // 3)
            core.abort(victim)
            tokens.pop(victim, None)
        for output in core.step().outputs:
            if output.request_id in tokens:
                tokens[output.request_id] += output.token_ids
        core.check()
    while core.has_work:
        for output in core.step().outputs:
            tokens[output.request_id] += output.token_ids
    assert len(tokens) == 12
    for name, ids in tokens.items():
        assert tuple(ids) == _expected(_prompt(5 + 2 * int(name), seed=int(name))), name


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_preemption_by_a_tiny_pool(tiny_directory: Path, prefix_caching: bool, temperature: float) -> None:
    core = _build(tiny_directory, num_blocks=12, block_size=4, max_model_len=48, prefix_caching=prefix_caching).core
    prompts = [_prompt(9, seed=i) for i in range(6)]
    requests = [
        _request(str(i), prompt, sampling=SamplingParams(temperature=temperature, seed=i))
        for i, prompt in enumerate(prompts)
    ]
    outputs = _run(core, *requests)
    assert core.load().preemptions_total > 0, "the pool was large enough"
    for i, prompt in enumerate(prompts):
        assert _tokens(outputs[str(i)]) == _expected(prompt, temperature=temperature, seed=i)


@pytest.mark.parametrize("length", [31, 32, 33, 48, 100])
def test_prefix_cache_hit_equals_cold(tiny_directory: Path, length: int) -> None:
    core = _build(tiny_directory).core
    prompt = _prompt(length)
    cold = _run(core, _request("cold", prompt))["cold"]
    warm = _run(core, _request("warm", prompt))["warm"]
    assert cold[0].prompt is not None
    assert cold[0].prompt.cached_tokens == 0
    assert warm[0].prompt is not None
    assert warm[0].prompt.cached_tokens == (length - 1) // 16 * 16
    assert _tokens(cold) == _tokens(warm) == _expected(prompt)
    longer = prompt + _tokens(cold)[:10]
    assert _tokens(_run(core, _request("longer", longer))["longer"]) == _expected(longer)
    core.reset_prefix_cache()
    again = _run(core, _request("again", prompt))["again"]
    assert again[0].prompt is not None
    assert again[0].prompt.cached_tokens == 0
    assert _tokens(again) == _expected(prompt)


@pytest.mark.parametrize("num_generated", [1, 8, 15, 16, 17])
@pytest.mark.parametrize("length", [15, 16, 17])
def test_ends_at_block_borders(tiny_directory: Path, length: int, num_generated: int) -> None:
    core = _build(tiny_directory).core
    prompt = _prompt(length)
    expected = _expected(prompt)
    by_length = _run(core, _request("a", prompt, stop=StopConditions(num_generated, ignore_eos=True)))["a"]
    assert _tokens(by_length) == expected[:num_generated]
    assert by_length[-1].finish_reason is FinishReason.LENGTH
    stop_id = expected[num_generated - 1]
    first = expected.index(stop_id) + 1
    stop = StopConditions(NUM_TOKENS, stop_token_ids=frozenset({stop_id}), ignore_eos=True)
    by_token = _run(core, _request("b", prompt, stop=stop))["b"]
    assert _tokens(by_token) == expected[:first]
    assert by_token[-1].finish_reason is FinishReason.STOP
    assert by_token[-1].stop_token_id == stop_id
    assert by_token[-1].usage is not None
    assert by_token[-1].usage.completion_tokens == first


def test_end_of_sequence(tiny_directory: Path) -> None:
    """A bias makes the model want to end; min_tokens holds it back."""
    core = _build(tiny_directory).core
    sampling = SamplingParams(temperature=0.0, logit_bias={EOS_TOKEN_ID: 100.0})
    ended = _run(core, _request("a", _prompt(20), sampling=sampling, stop=StopConditions(9)))["a"]
    assert _tokens(ended) == (EOS_TOKEN_ID,)
    assert ended[-1].finish_reason is FinishReason.STOP
    held = _run(core, _request("b", _prompt(20), sampling=sampling, stop=StopConditions(9, 4)))["b"]
    assert len(_tokens(held)) == 5
    assert _tokens(held)[-1] == EOS_TOKEN_ID
    ignored = StopConditions(9, ignore_eos=True)
    past = _run(core, _request("c", _prompt(20), sampling=sampling, stop=ignored))["c"]
    assert _tokens(past) == (EOS_TOKEN_ID,) * 9


def test_seeded_sampling_with_other_mates(tiny_directory: Path) -> None:
    prompt = _prompt(21)
    sampling = SamplingParams(temperature=0.9, seed=1234)
    expected = _expected(prompt, temperature=0.9, seed=1234)
    alone = _run(_build(tiny_directory).core, _request("x", prompt, sampling=sampling))["x"]
    assert _tokens(alone) == expected
    for num_mates, budget in ((3, 64), (12, 16)):
        core = _build(tiny_directory, max_num_batched_tokens=budget).core
        mates = [
            _request(f"mate {i}", _prompt(10 + i, seed=i), sampling=SamplingParams(seed=i, top_p=0.5 + i / 50))
            for i in range(num_mates)
        ]
        outputs = _run(core, *mates[:2], _request("x", prompt, sampling=sampling), *mates[2:])
        assert _tokens(outputs["x"]) == expected
    other = SamplingParams(temperature=0.9, seed=1235)
    assert _tokens(_run(core, _request("y", prompt, sampling=other))["y"]) != expected


@pytest.mark.parametrize("num_done", [1, 11, 12, 23])
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SamplingParams(temperature=1.0, seed=7),
        SamplingParams(
            temperature=0.8, seed=7, top_p=0.9, frequency_penalty=0.5, presence_penalty=0.3, repetition_penalty=1.2
        ),
        SamplingParams(temperature=1.0, seed=7, bad_words=((1,), (2, 3))),
    ],
    ids=["greedy", "seeded", "penalties", "bad words"],
)
def test_continuation_equals_the_uninterrupted_run(
    tiny_directory: Path, num_done: int, sampling: SamplingParams
) -> None:
    prompt = _prompt(20)
    stop = StopConditions(NUM_TOKENS, min_tokens=15, ignore_eos=True)
    whole = _run(_build(tiny_directory).core, _request("r", prompt, sampling=sampling, stop=stop))["r"]
    done = _tokens(whole)[:num_done]
    rest = _run(
        _build(tiny_directory).core,
        _request("r", prompt, sampling=sampling, stop=stop, generated_token_ids=done),
    )["r"]
    assert done + _tokens(rest) == _tokens(whole)
    assert rest[-1].usage == whole[-1].usage
    assert rest[-1].finish_reason is whole[-1].finish_reason


def test_logprobs_and_prompt_logprobs(tiny_directory: Path) -> None:
    """Compared loosely, in chunks of 16 tokens, with a mate in the batch."""
    core = _build(tiny_directory, max_num_batched_tokens=16).core
    prompt = _prompt(50)
    request = _request("r", prompt, logprobs=3, prompt_logprobs=2)
    outputs = _run(core, _request("mate", _prompt(40)), request)["r"]
    assert _tokens(outputs) == _expected(prompt)
    tokens = prompt + _tokens(outputs)
    expected = _naive().logits(tokens).log_softmax(dim=-1)
    prompt_info = outputs[0].prompt
    assert prompt_info is not None
    entries = [*prompt_info.logprobs, *(entry for output in outputs for entry in output.logprobs)]
    assert [entry.token_id for entry in entries] == list(tokens)
    assert entries[0].logprob is None
    for position, entry in enumerate(entries[1:], start=1):
        row = expected[position - 1]
        assert entry.logprob == pytest.approx(float(row[tokens[position]]), abs=1e-4)
        assert entry.rank == int((row > row[tokens[position]]).sum()) + 1
        best = row.topk(2 if position < len(prompt) else 3)
        assert entry.top_token_ids == tuple(best.indices.tolist())
        assert entry.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-4)


def test_scoring_generates_nothing(tiny_directory: Path) -> None:
    core = _build(tiny_directory).core
    prompt = _prompt(40)
    (output,) = _run(core, _request("r", prompt, stop=StopConditions(0), prompt_logprobs=0))["r"]
    assert output.token_ids == ()
    assert output.finish_reason is FinishReason.LENGTH
    assert output.prompt is not None
    assert len(output.prompt.logprobs) == 40


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3", *MIXTURES])
def test_other_architectures(tmp_path: Path, architecture: str) -> None:
    config = tiny_config(architecture)
    naive = NaiveModel(config, tiny_state(config))
    core = _build(write_huggingface_directory(tmp_path, config), max_num_batched_tokens=16).core
    prompts = [_prompt(length) for length in (5, 40)]
    outputs = _run(core, *[_request(str(i), prompt) for i, prompt in enumerate(prompts)])
    for i, prompt in enumerate(prompts):
        assert list(_tokens(outputs[str(i)])) == naive.generate(prompt, NUM_TOKENS)


def test_build_reports_what_it_found(tiny_directory: Path) -> None:
    phases: list[tuple[Phase, int, int]] = []
    config = EngineConfig(tiny_directory, dtype="float32", num_threads=1, max_model_len=128)
    built = build_engine(config, lambda *progress: phases.append(progress))
    assert [phase for phase, done, total in phases if done == total] == list(Phase)
    assert built.facts.architecture == "llama"
    assert built.facts.dtype == "float32"
    assert built.facts.vocab_size == TINY_CONFIG.vocab_size
    assert built.facts.max_model_len == 128
    assert built.facts.eos_token_ids == (EOS_TOKEN_ID, 256)
    assert built.num_blocks == 64 * 128 // 16
    assert (built.device, built.attention_backend, built.num_threads) == ("cpu", "torch", 1)
    half = build_engine(EngineConfig(tiny_directory, dtype="bfloat16", num_threads=1, num_blocks=64))
    assert half.facts.fingerprint != built.facts.fingerprint


def test_build_refuses_what_cannot_work(tiny_directory: Path) -> None:
    with pytest.raises(CheckpointError, match="max_model_len: 5000 is more than the 1024 positions"):
        _build(tiny_directory, max_model_len=5000)
    with pytest.raises(CacheSizeError, match="cannot hold one sequence"):
        _build(tiny_directory, num_blocks=3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named(tiny_directory: Path) -> None:
    with pytest.raises(DeviceError, match=r"device: cuda cannot be used: .*; set it to cpu"):
        build_engine(EngineConfig(tiny_directory, device="cuda"))


def test_dummy_weights_are_seeded(tiny_directory: Path) -> None:
    prompt = _prompt(20)
    first = _run(_build(tiny_directory, load_format="dummy").core, _request("r", prompt))["r"]
    assert _tokens(first) == _expected(prompt), "seed 0 is what the directory was written with"
    other = _run(_build(tiny_directory, load_format="dummy", seed=1).core, _request("r", prompt))["r"]
    assert _tokens(other) != _expected(prompt)
