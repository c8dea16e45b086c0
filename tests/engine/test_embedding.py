"""Pooled hidden states: equal to transformers' in float32, close to it on the native kernels, and no guests' harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from engine.build import BuiltEngine, build_engine
from engine.config import EngineConfig
from engine.errors import InvalidRequestError
from engine.request import FinishReason, Output, Pooling, PoolingMethod, Request, SamplingParams, StopConditions
from tests.support.native_kernels import instruction_sets
from tests.support.tiny_model import TINY_CONFIG, tiny_config, write_huggingface_directory

METHODS = (PoolingMethod.MEAN, PoolingMethod.LAST)


def _build(directory: Path, **changes: Any) -> BuiltEngine:
    values: dict[str, Any] = {"num_threads": 1, "num_blocks": 64, "max_model_len": 256, "dtype": "float32"}
    return build_engine(EngineConfig(directory, **(values | changes)))


def _prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(0, 256, (length,), generator=generator).tolist())


def _embed(name: str, prompt: tuple[int, ...], method: PoolingMethod, dimensions: int | None = None) -> Request:
    return Request(name, prompt, stop=StopConditions(max_tokens=0), pooling=Pooling(method, dimensions))


def _run(built: BuiltEngine, *requests: Request) -> dict[str, list[Output]]:
    """All outputs by request; every block is free afterwards."""
    outputs: dict[str, list[Output]] = {}
    for request in requests:
        built.core.add(request)
    while built.core.has_work:
        for output in built.core.step().outputs:
            outputs.setdefault(output.request_id, []).append(output)
        built.core.check()
    assert built.core.load().free_blocks == built.num_blocks
    return outputs


def _vector(outputs: list[Output]) -> Tensor:
    (output,) = outputs
    assert output.finish_reason is FinishReason.LENGTH
    assert output.token_ids == ()
    assert output.embedding is not None
    return torch.tensor(output.embedding)


def _reference(directory: Path, prompt: tuple[int, ...], method: PoolingMethod) -> Tensor:
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        hidden = model(torch.tensor([prompt])).last_hidden_state[0]
    pooled = hidden.mean(dim=0) if method is PoolingMethod.MEAN else hidden[-1]
    return F.normalize(pooled, dim=0)


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_huggingface_directory(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_equal_to_transformers(architecture: str, method: PoolingMethod, tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path / architecture, tiny_config(architecture))
    built = _build(directory)
    prompts = [_prompt(length) for length in (1, 2, 17, 120)]
    outputs = _run(built, *(_embed(str(len(prompt)), prompt, method) for prompt in prompts))
    for prompt in prompts:
        vector = _vector(outputs[str(len(prompt))])
        assert vector.norm().item() == pytest.approx(1.0, abs=1e-5)
        torch.testing.assert_close(vector, _reference(directory, prompt, method), atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("isa", instruction_sets())
def test_native_kernels_agree(
    isa: str, method: PoolingMethod, tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_CPU_ISA", isa)
    built = _build(tiny_directory, dtype="auto", kernels="native")
    assert built.attention_backend == f"native-{isa}"
    vector = _vector(_run(built, _embed("a", _prompt(50), method))["a"])
    assert F.cosine_similarity(vector, _reference(tiny_directory, _prompt(50), method), dim=0) > 0.999


@pytest.mark.parametrize("method", METHODS)
def test_chunks_prefix_cache_and_batch_mates_change_nothing(method: PoolingMethod, tiny_directory: Path) -> None:
    alone = _vector(_run(_build(tiny_directory), _embed("a", _prompt(120), method))["a"])
    chunked = _build(tiny_directory, max_num_batched_tokens=16, max_num_seqs=4)
    generating = [
        Request(f"g{i}", _prompt(20, i), sampling=SamplingParams(temperature=0.0), stop=StopConditions(max_tokens=12))
        for i in range(3)
    ]
    expected = [_run(_build(tiny_directory), request) for request in generating]
    outputs = _run(chunked, *generating, _embed("a", _prompt(120), method))
    torch.testing.assert_close(_vector(outputs["a"]), alone, atol=1e-5, rtol=0)
    for request, own in zip(generating, expected, strict=True):
        name = request.request_id
        tokens = [token for output in outputs[name] for token in output.token_ids]
        assert tokens == [token for output in own[name] for token in output.token_ids]
    again = _run(chunked, _embed("again", _prompt(120), method))  # its blocks are cached now
    torch.testing.assert_close(_vector(again["again"]), alone, atol=1e-5, rtol=0)


def test_a_preempted_input_is_summed_up_anew(tiny_directory: Path) -> None:
    """Generation that began earlier takes the blocks of an input that is half computed."""
    alone = _vector(_run(_build(tiny_directory), _embed("a", _prompt(150), PoolingMethod.MEAN))["a"])
    built = _build(tiny_directory, num_blocks=16, max_num_batched_tokens=2, max_num_seqs=2)
    first = Request(
        "g", _prompt(30), sampling=SamplingParams(temperature=0.0), stop=StopConditions(max_tokens=90, ignore_eos=True)
    )
    outputs = _run(built, first, _embed("a", _prompt(150), PoolingMethod.MEAN))
    assert built.core.load().preemptions_total > 0
    torch.testing.assert_close(_vector(outputs["a"]), alone, atol=1e-5, rtol=0)


def test_an_abort_between_chunks_leaves_nothing(tiny_directory: Path) -> None:
    built = _build(tiny_directory, max_num_batched_tokens=16, max_num_seqs=4)
    built.core.add(_embed("a", _prompt(120), PoolingMethod.MEAN))
    assert built.core.step().outputs == []
    output = built.core.abort("a")
    assert output is not None
    assert output.embedding is None
    assert built.core.load().free_blocks == built.num_blocks
    vector = _vector(_run(built, _embed("a", _prompt(30), PoolingMethod.MEAN))["a"])
    torch.testing.assert_close(vector, _reference(tiny_directory, _prompt(30), PoolingMethod.MEAN), atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_dimensions_are_cut_and_scaled_again(method: PoolingMethod, tiny_directory: Path) -> None:
    built = _build(tiny_directory)
    outputs = _run(built, _embed("all", _prompt(9), method), _embed("cut", _prompt(9), method, 10))
    whole, cut = _vector(outputs["all"]), _vector(outputs["cut"])
    assert len(whole) == TINY_CONFIG.hidden_size == built.facts.embedding_size
    torch.testing.assert_close(cut, F.normalize(whole[:10], dim=0))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"pooling": Pooling(PoolingMethod.MEAN, 65)}, "dimensions"),
        ({"pooling": Pooling(PoolingMethod.MEAN, 0)}, "dimensions"),
        ({"stop": StopConditions(max_tokens=1)}, "stop.max_tokens"),
        ({"stop": StopConditions()}, "stop.max_tokens"),
        ({"prompt_token_ids": (260,)}, "prompt_token_ids"),
        ({"prompt_token_ids": (1,) * 257}, "prompt_token_ids"),
    ],
)
def test_what_cannot_be_pooled_is_refused(changes: dict[str, Any], field: str, tiny_directory: Path) -> None:
    values: dict[str, Any] = {
        "prompt_token_ids": (1,),
        "stop": StopConditions(max_tokens=0),
        "pooling": Pooling(PoolingMethod.MEAN),
    }
    built = _build(tiny_directory)
    with pytest.raises(InvalidRequestError) as caught:
        built.core.add(Request("a", **(values | changes)))
    assert caught.value.field == field
    _run(built, _embed("full", (1,) * 256, PoolingMethod.LAST))
