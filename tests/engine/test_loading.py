"""Opening checkpoints: both formats hold the same model, and what cannot be loaded says why."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import save_file

from engine.errors import CheckpointError
from engine.facts import DefaultSampling
from engine.model.config import RopeConfig, RopeKind
from engine.model.loading import open_checkpoint
from engine.model.tokenizer_files import read_tokenizer_archive
from tests.support.tiny_model import (
    BOS_TOKEN_ID,
    EOS_TOKEN_ID,
    TINY_CONFIG,
    huggingface_config,
    tiny_config,
    tiny_state,
    write_gguf,
    write_huggingface_directory,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_huggingface_directory(tmp_path / "tiny")


def _change_config(directory: Path, **fields: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_huggingface_directory(tmp_path: Path, architecture: str, num_shards: int) -> None:
    config = tiny_config(architecture)
    checkpoint = open_checkpoint(write_huggingface_directory(tmp_path, config, num_shards=num_shards))
    assert checkpoint.config == config or architecture == "mistral"
    assert checkpoint.eos_token_ids == (EOS_TOKEN_ID, 256)
    assert checkpoint.bos_token_id == BOS_TOKEN_ID
    assert checkpoint.quantization == ""
    state = tiny_state(config)
    assert checkpoint.weights.names() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(checkpoint.weights.read(name), tensor), name
    assert checkpoint.num_parameters == sum(tensor.numel() for tensor in state.values())


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_gguf_holds_the_same_weights(tmp_path: Path, architecture: str) -> None:
    config = tiny_config(architecture)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", config))
    eps = checkpoint.config.rms_norm_eps
    assert replace(checkpoint.config, rms_norm_eps=config.rms_norm_eps) == config
    assert eps == pytest.approx(config.rms_norm_eps)
    assert checkpoint.eos_token_ids == (EOS_TOKEN_ID, 256)  # 256 is <|endoftext|>, a control token
    for name, tensor in tiny_state(config).items():
        assert torch.equal(checkpoint.weights.read(name), tensor), name


def test_quantised_gguf_is_close(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", matrix_type=gguf.GGMLQuantizationType.Q8_0)
    checkpoint = open_checkpoint(path)
    assert checkpoint.quantization == "Q8_0"
    for name, tensor in tiny_state().items():
        assert torch.allclose(checkpoint.weights.read(name), tensor, atol=0.02 * float(tensor.abs().max())), name


def test_fingerprint_tells_weights_apart(tmp_path: Path) -> None:
    digests = [
        open_checkpoint(write_huggingface_directory(tmp_path / str(i), seed=seed)).digest
        for i, seed in enumerate((0, 0, 1))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_rope_scaling_is_read(directory: Path) -> None:
    rope = RopeConfig(
        theta=500000.0,
        kind=RopeKind.LLAMA3,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=256,
    )
    config = replace(TINY_CONFIG, rope=rope)
    (directory / "config.json").write_text(json.dumps(huggingface_config(config)))
    assert open_checkpoint(directory).config == config
    fields = huggingface_config(config)
    scaling = fields.pop("rope_scaling")
    assert isinstance(scaling, dict)
    fields["rope_parameters"] = scaling | {"rope_theta": fields.pop("rope_theta")}  # transformers 5 writes this
    (directory / "config.json").write_text(json.dumps(fields))
    assert open_checkpoint(directory).config == config


def test_default_sampling_is_read(directory: Path) -> None:
    values = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    (directory / "generation_config.json").write_text(json.dumps(values))
    assert open_checkpoint(directory).default_sampling == DefaultSampling(temperature=0.6, top_k=20, top_p=0.95)
    assert open_checkpoint(directory).eos_token_ids == (EOS_TOKEN_ID,)  # from config.json


def test_dummy_weights_need_no_weight_file(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model.safetensors nor"):
        open_checkpoint(directory)
    checkpoint = open_checkpoint(directory, dummy=True)
    assert torch.equal(checkpoint.weights.read("model.norm.weight"), tiny_state()["model.norm.weight"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*supported are LlamaForCausalLM, Mistral"),
        ({"architectures": None}, "architectures is None"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "type 'yarn'; supported are default, linear, llama3"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"vocab_size": 1 << 60}, "vocab_size: 1152921504606846976 is outside"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_hidden_layers": 3}, "9 tensors are missing: model.layers.2"),
        ({"num_hidden_layers": 1}, "9 tensors have no place in the architecture 'llama'"),
        ({"hidden_size": 128}, r"shape \[260, 64\], the configuration needs \[260, 128\]"),
        ({"quantization_config": {"quant_method": "gptq"}}, "only loaded from GGUF"),
        ({"num_key_value_heads": 3}, "not a multiple"),
    ],
)
def test_configurations_that_cannot_be_loaded(directory: Path, fields: dict[str, object], message: str) -> None:
    _change_config(directory, **fields)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(directory)


def test_missing_and_foreign_paths(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or directory"):
        open_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"config.json: cannot be read"):
        open_checkpoint(tmp_path)


def test_missing_tensor_is_named(directory: Path) -> None:
    state = tiny_state()
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 tensors are missing: model.layers.1.mlp.up_proj.weight"):
        open_checkpoint(directory)


def test_integer_tensors_are_refused(directory: Path) -> None:
    state = tiny_state()
    state["model.norm.weight"] = state["model.norm.weight"].to(torch.int8)
    save_file(state, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' is stored as I8; F32, F16, BF16 can be"):
        open_checkpoint(directory).weights.read("model.norm.weight")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[1]", "header is damaged"),
        (b"{", "header is damaged"),
        (b"[" * 100_000, "header is damaged"),
        (b'{"a": 1}', "header is damaged"),
        (b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}', "header is damaged"),
        (b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', "shape"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "has 4 bytes"),
        (b'{"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}', "truncated or damaged"),
    ],
)
def test_damaged_safetensors_headers(directory: Path, header: bytes, message: str) -> None:
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(directory)


def test_truncated_safetensors(directory: Path) -> None:
    path = directory / "model.safetensors"
    data = path.read_bytes()
    for length in (0, 4, 8, 100, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            open_checkpoint(directory)
    path.write_bytes(struct.pack("<Q", 1 << 62) + data[8:])
    with pytest.raises(CheckpointError, match="claims a header of 4611686018427387904 bytes"):
        open_checkpoint(directory)


def test_shard_index_cannot_lead_outside(tmp_path: Path) -> None:
    directory = write_huggingface_directory(tmp_path, num_shards=2)
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"model.norm.weight": "../secret.safetensors"}}))
    with pytest.raises(CheckpointError, match="not the name of a file beside it"):
        open_checkpoint(directory)


def test_unsupported_gguf_types_and_architectures_are_named(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor(
        "token_embd.weight",
        torch.zeros(4, 64, dtype=torch.uint8).numpy(),
        raw_dtype=gguf.GGMLQuantizationType.IQ4_NL,
        raw_shape=(4, 64 // 32 * 18),
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        CheckpointError, match=r"type IQ4_NL, which cannot be loaded; supported are BF16, F16, F32, Q2_K"
    ):
        open_checkpoint(path)
    path = write_gguf(tmp_path / "gpt2.gguf", replace(TINY_CONFIG, architecture="gpt2"))
    with pytest.raises(
        CheckpointError, match="architecture 'gpt2' cannot be loaded; supported in GGUF are llama, qwen2"
    ):
        open_checkpoint(path)


def test_gguf_rope_factors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "factors.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in (("block_count", 1), ("context_length", 64), ("embedding_length", 32)):
        writer.add_uint32(f"llama.{name}", value)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_tensor("token_embd.weight", torch.zeros(8, 32).numpy())
    writer.add_tensor("rope_freqs.weight", torch.tensor([1.0, 2.0, 4.0, 8.0]).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from engine.model.gguf import GgufFile
    from engine.model.gguf_checkpoint import _read_config

    assert _read_config(GgufFile(path)).rope.freq_factors == (1.0, 2.0, 4.0, 8.0)


def test_tokenizer_archive_of_a_directory(directory: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO(read_tokenizer_archive(directory)))
    assert archive.namelist() == ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    for name in archive.namelist():
        assert archive.read(name) == (directory / name).read_bytes()
    assert read_tokenizer_archive(directory) == read_tokenizer_archive(directory)
    (directory / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json"):
        read_tokenizer_archive(directory)


def test_tokenizer_archive_of_a_gguf_file(tmp_path: Path) -> None:
    first, second = (write_gguf(tmp_path / f"{i}.gguf") for i in range(2))
    assert read_tokenizer_archive(first) == read_tokenizer_archive(second)
    archive = zipfile.ZipFile(io.BytesIO(read_tokenizer_archive(first)))
    values = json.loads(archive.read("gguf_tokenizer.json"))
    assert values["general.architecture"] == "llama"
    assert len(values["tokenizer.ggml.tokens"]) == TINY_CONFIG.vocab_size
    assert "message" in values["tokenizer.chat_template"]
    assert not any(key.startswith("llama.") for key in values)
