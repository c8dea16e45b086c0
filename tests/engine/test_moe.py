"""Mixtures of experts: from every file format, through the whole engine, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import transformers
from torch import Tensor

from engine.build import build_engine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import CheckpointError
from engine.model.config import ExpertConfig
from engine.model.llama import Llama
from engine.model.loading import open_checkpoint
from engine.model.quantise import QuantisedWeights, quantise_matrix
from engine.native.native_model import why_not
from engine.request import Request, SamplingParams, StopConditions
from tests.support.naive_model import NaiveModel
from tests.support.tiny_model import MIXTURES, tiny_config, tiny_state, write_gguf, write_huggingface_directory

NUM_TOKENS = 20


def _prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return tuple(torch.randint(0, 256, (length,), generator=generator).tolist())


def _core(path: Path, **changes: Any) -> EngineCore:
    values: dict[str, Any] = {
        "dtype": "float32",
        "num_threads": 1,
        "num_blocks": 64,
        "max_model_len": 256,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 64,
    }
    return build_engine(EngineConfig(path, **(values | changes))).core


def _run(core: EngineCore, prompts: dict[str, tuple[int, ...]]) -> dict[str, list[int]]:
    for name, prompt in prompts.items():
        stop = StopConditions(max_tokens=NUM_TOKENS, ignore_eos=True)
        core.add(Request(name, prompt, sampling=SamplingParams(temperature=0.0), stop=stop))
    tokens: dict[str, list[int]] = {name: [] for name in prompts}
    while core.has_work:
        for output in core.step().outputs:
            tokens[output.request_id] += output.token_ids
        core.check()
    return tokens


@pytest.mark.parametrize("architecture", MIXTURES)
def test_generated_tokens_equal_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    """Chunked prefill beside decoding mates, pages, and the prefix cache; against a model without any of it."""
    directory = write_huggingface_directory(tmp_path, tiny_config(architecture))
    reference = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    prompts = {str(length): _prompt(length) for length in (3, 16, 33, 70)}
    expected = {}
    for name, prompt in prompts.items():
        ids = torch.tensor([prompt])
        whole = reference.generate(ids, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)
        expected[name] = whole[0, len(prompt) :].tolist()
    core = _core(directory, max_num_batched_tokens=17)
    assert _run(core, prompts) == expected
    hits = core.load().prefix_cache_hits_total
    assert _run(core, prompts) == expected
    assert core.load().prefix_cache_hits_total > hits, "the second time nothing was found in the cache"


@pytest.mark.parametrize("architecture", MIXTURES)
def test_gguf_holds_the_same_model(architecture: str, tmp_path: Path) -> None:
    config = tiny_config(architecture)
    directory = write_huggingface_directory(tmp_path / "directory", config)
    file = write_gguf(tmp_path / "tiny.gguf", config)
    from_directory, from_file = open_checkpoint(directory), open_checkpoint(file)
    assert from_file.config.experts == from_directory.config.experts == config.experts
    assert from_file.weights.names() == from_directory.weights.names()
    for name in from_file.weights.names():
        assert torch.equal(from_file.weights.read(name), from_directory.weights.read(name)), name
    prompts = {"a": _prompt(30), "b": _prompt(7)}
    assert _run(_core(file), prompts) == _run(_core(directory), prompts)


@pytest.mark.parametrize("architecture", MIXTURES)
def test_quantised_experts_are_read_one_by_one(architecture: str, tmp_path: Path) -> None:
    config = tiny_config(architecture)
    weights = open_checkpoint(
        write_gguf(tmp_path / "tiny.gguf", config, matrix_type=gguf.GGMLQuantizationType.Q8_0)
    ).weights
    state = tiny_state(config)
    for name in sorted(weights.names()):
        torch.testing.assert_close(weights.read(name), state[name], atol=0.03, rtol=0)


def test_experts_in_a_tensor_each(tmp_path: Path) -> None:
    """The layout of GGUF files of Mixtral's first months."""
    config = tiny_config("mixtral")
    whole = gguf.GGUFReader(write_gguf(tmp_path / "new.gguf", config))
    writer = gguf.GGUFWriter(tmp_path / "old.gguf", "llama")
    for field in whole.fields.values():
        if field.name.startswith("llama."):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in whole.tensors:
        if "_exps" not in tensor.name:
            writer.add_tensor(tensor.name, tensor.data)
            continue
        for expert, part in enumerate(tensor.data):
            writer.add_tensor(tensor.name.replace("_exps.", f".{expert}."), part)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    old = open_checkpoint(tmp_path / "old.gguf").weights
    state = tiny_state(config)
    assert old.names() == state.keys()
    for name in state:
        assert torch.equal(old.read(name), state[name]), name


def test_quantising_on_load_leaves_routers_alone(tmp_path: Path) -> None:
    config = tiny_config("qwen2_moe")
    source = open_checkpoint(write_huggingface_directory(tmp_path, config)).weights
    weights = QuantisedWeights(source, "int4", quantise_matrix)
    for name in ("mlp.gate", "mlp.shared_expert_gate"):
        full = f"model.layers.0.{name}.weight"
        assert torch.equal(weights.read(full), source.read(full))
    expert = "model.layers.0.mlp.experts.5.up_proj.weight"
    assert not torch.equal(weights.read(expert), source.read(expert))
    torch.testing.assert_close(weights.read(expert), source.read(expert), atol=0.05, rtol=0)


def test_native_kernels_leave_it_to_torch(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe")
    assert why_not(config) == "it is a mixture of 10 experts, which torch computes"
    directory = write_huggingface_directory(tmp_path, config)
    with pytest.raises(CheckpointError, match=r"kernels: 'native' cannot be used: .* a mixture of 10 experts.*torch"):
        _core(directory, dtype="auto", kernels="native")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_chooses_like_float32(tmp_path: Path, dtype: str) -> None:
    """The first token only: near-ties go either way later."""
    config = tiny_config("mixtral")
    directory = write_huggingface_directory(tmp_path, config)
    naive = NaiveModel(config, tiny_state(config))
    prompts = {str(i): _prompt(12, seed=i) for i in range(8)}
    tokens = _run(_core(directory, dtype=dtype), prompts)
    same = sum(tokens[name][0] == int(naive.logits(prompt)[-1].argmax()) for name, prompt in prompts.items())
    assert same >= 7


@pytest.mark.parametrize(
    ("architecture", "fields", "message"),
    [
        ("mixtral", {"num_local_experts": 0}, "num_experts: 0 is outside 1 to 4096"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok: 9 is outside 1 to 8"),
        ("mixtral", {"num_local_experts": 9}, "experts.8.down_proj.weight"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size: 0 is outside"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ("qwen3_moe", {"mlp_only_layers": [0, 1, 2]}, "no layer is left for the experts"),
        ("qwen3_moe", {"mlp_only_layers": "all"}, "mlp_only_layers is 'all'"),
        ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob is 1, not true or false"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 1 << 30}, "shared_expert_intermediate_size"),
        ("qwen2_moe", {"architectures": ["DeepseekV3ForCausalLM"]}, "DeepseekV3ForCausalLM.*Qwen3MoeForCausalLM"),
    ],
)
def test_configurations_that_cannot_be_loaded(
    tmp_path: Path, architecture: str, fields: dict[str, object], message: str
) -> None:
    directory = write_huggingface_directory(tmp_path, tiny_config(architecture))
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(directory)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_gating_func", 2, "expert_gating_func' is not softmax"),
        ("expert_weights_scale", 2.5, "expert_weights_scale' is not 1"),
        ("expert_group_count", 8, "groups of experts are not supported"),
        ("expert_weights_norm", 1, "not true or false"),
    ],
)
def test_gguf_routing_that_is_not_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: float, message: str
) -> None:
    original = gguf.GGUFWriter.add_expert_used_count

    def with_another_key(writer: gguf.GGUFWriter, count: int) -> None:
        original(writer, count)
        if isinstance(value, int):
            writer.add_uint32(f"qwen3moe.{key}", value)
        else:
            writer.add_float32(f"qwen3moe.{key}", value)

    monkeypatch.setattr(gguf.GGUFWriter, "add_expert_used_count", with_another_key)
    path = write_gguf(tmp_path / "other.gguf", tiny_config("qwen3_moe"))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_sparse_steps_count_from_one(tmp_path: Path) -> None:
    config = replace(
        tiny_config("qwen3_moe"),
        num_layers=5,
        experts=ExpertConfig(
            num_experts=4, num_active=2, intermediate_size=32, normalised=True, dense_layers=frozenset({0, 2, 3, 4})
        ),
    )
    directory = write_huggingface_directory(tmp_path, config)
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}))
    assert open_checkpoint(directory).config.experts == config.experts


def test_a_token_alone_gets_what_it_gets_in_a_batch(tmp_path: Path) -> None:
    config = tiny_config("qwen3_moe")
    model = Llama(
        config,
        open_checkpoint(write_huggingface_directory(tmp_path, config)).weights,
        torch.float64,
        torch.device("cpu"),
    )
    layer = model.expert_layers[0]
    x = torch.randn((40, config.hidden_size), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.inference_mode():
        together: Tensor = layer(x)
        alone = torch.cat([layer(row[None]) for row in x])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
