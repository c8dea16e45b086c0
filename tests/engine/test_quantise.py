"""Quantisation on load: native code against the reference, the blocks against the weights, and whole models."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from engine.build import build_engine
from engine.config import EngineConfig
from engine.errors import CheckpointError, DeviceError
from engine.model.loading import open_checkpoint
from engine.model.quantise import QuantisedWeights, quantise_matrix
from engine.model.weights import StoredMatrix, float_matrix
from engine.native.quantise import native_quantise
from tests.support.naive_model import NaiveModel
from tests.support.native_kernels import NativeStepper, Part, StateWeights, instruction_sets, native_library
from tests.support.tiny_model import TINY_CONFIG, tiny_state, write_gguf, write_huggingface_directory

KINDS = ("Q8_0", "Q5_1", "Q4_1")
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _matrix(values: Tensor, kind: str) -> StoredMatrix:
    rows, cols = values.shape
    return StoredMatrix(kind, (rows, cols), values.to(FLOATS[kind]).view(torch.uint8).numpy().reshape(-1))


def _values(matrix: StoredMatrix) -> Tensor:
    blocks = matrix.data.reshape(matrix.shape[0], -1)
    return torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType[matrix.kind]))


def _awkward_rows() -> Tensor:
    """Nine orders of magnitude, down to where float16 loses bits; zeros, constants, one sign, one large weight."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(300, 96, generator=generator) * 10 ** (torch.rand(300, 1, generator=generator) * 9 - 8)
    rows[0], rows[1], rows[2, ::2] = 0.0, 3.7, 0.0
    rows[3], rows[4, 5], rows[5] = -rows[3].abs(), 6e4, -1e-9
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", sorted(FLOATS))
@pytest.mark.parametrize("num_threads", [1, 3])
def test_native_code_finds_the_bytes_of_the_reference(kind: str, stored: str, num_threads: int) -> None:
    matrix = _matrix(_awkward_rows(), stored)
    native = native_quantise(native_library(), num_threads)(matrix, kind)
    reference = quantise_matrix(matrix, kind)
    assert (native.kind, native.shape) == (reference.kind, reference.shape)
    assert np.array_equal(native.data, reference.data)


def test_blocks_lose_less_than_those_of_the_usual_tools() -> None:
    values = torch.randn(256, 512, generator=torch.Generator().manual_seed(1))
    errors = {}
    for kind in KINDS:
        ours = _values(quantise_matrix(_matrix(values, "F32"), kind))
        usual = gguf.quantize(values.numpy(), gguf.GGMLQuantizationType[kind])
        theirs = torch.from_numpy(gguf.dequantize(usual, gguf.GGMLQuantizationType[kind]))
        errors[kind] = [float((x - values).norm() / values.norm()) for x in (ours, theirs)]
    assert errors["Q8_0"][0] <= errors["Q8_0"][1] < 0.006
    assert errors["Q5_1"][0] < 0.036
    assert errors["Q4_1"][0] < 0.071
    assert all(errors[kind][0] < 0.95 * errors[kind][1] for kind in ("Q4_1", "Q5_1"))


def test_what_is_on_a_grid_already_stays() -> None:
    """A model that was quantised, then stored in full, gets its old blocks back but for rounding of the scales."""
    values = torch.randn(64, 256, generator=torch.Generator().manual_seed(2))
    for kind in KINDS:
        once = _values(quantise_matrix(_matrix(values, "F32"), kind))
        twice = _values(quantise_matrix(_matrix(once, "F32"), kind))
        assert (twice - once).norm() < 0.005 * once.norm()


@pytest.mark.parametrize("quantise", [quantise_matrix, native_quantise(native_library(), 1)], ids=["torch", "native"])
def test_weights_that_are_no_numbers_are_refused_by_name(quantise: object) -> None:
    state = tiny_state()
    state["model.layers.1.mlp.up_proj.weight"][3, 40] = torch.nan
    weights = QuantisedWeights(StateWeights(state), "int8", quantise)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight'.*infinite or no numbers"):
        weights.read("model.layers.1.mlp.up_proj.weight")


def test_what_is_quantised_to_what() -> None:
    source = StateWeights({**tiny_state(), "model.layers.0.self_attn.v_proj.weight": torch.ones(64, 40)})
    weights = QuantisedWeights(source, "int4", quantise_matrix)
    kinds = {name: stored.kind for name in weights.names() if (stored := weights.stored(name)) is not None}
    assert kinds.pop("model.embed_tokens.weight") == "Q8_0"
    assert kinds.pop("lm_head.weight") == "Q8_0"
    assert kinds.pop("model.layers.0.self_attn.v_proj.weight") == "F32"  # rows of 40 are no whole blocks
    assert kinds.pop("model.layers.1.self_attn.v_proj.weight") == "Q8_0"
    assert {kinds.pop(f"model.layers.{layer}.mlp.down_proj.weight") for layer in range(2)} == {"Q5_1"}
    assert set(kinds.values()) == {"Q4_1"}
    assert weights.stored("model.norm.weight") is None
    assert torch.equal(weights.read("model.norm.weight"), source.read("model.norm.weight"))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_checkpoints_of_both_formats_give_the_same_weights(quantization: str, tmp_path: Path) -> None:
    """Queries and keys lie in another order in GGUF files."""
    directory = write_huggingface_directory(tmp_path / "tiny")
    file = write_gguf(tmp_path / "tiny.gguf")
    first, second = (
        QuantisedWeights(open_checkpoint(path).weights, quantization, quantise_matrix) for path in (directory, file)
    )
    for name in first.names():
        assert torch.equal(first.read(name), second.read(name)), name


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_native_and_torch_compute_with_the_same_weights(isa: str, quantization: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_huggingface_directory(tmp_path / "tiny"))
    native = QuantisedWeights(checkpoint.weights, quantization, native_quantise(native_library(), 1))
    reference = QuantisedWeights(checkpoint.weights, quantization, quantise_matrix)
    state = {name: reference.read(name) for name in reference.names()}
    prompt = tuple(range(40))
    actual = NativeStepper(TINY_CONFIG, native, isa).logits(Part(prompt, 0, 40, (0, 1, 2)))
    expected = NaiveModel(TINY_CONFIG, state).logits(prompt)
    assert (actual - expected).pow(2).mean().sqrt() < 0.03 * expected.std()


def test_facts_and_fingerprint_tell_the_quantisation(tmp_path: Path) -> None:
    path = write_huggingface_directory(tmp_path / "tiny")
    built = {
        (kernels, quantization): build_engine(
            EngineConfig(path, kernels=kernels, quantization=quantization, num_blocks=80, num_threads=1)
        ).facts
        for kernels in ("native", "torch")
        for quantization in ("none", "int8", "int4")
    }
    assert [built["native", kind].quantization for kind in ("none", "int8", "int4")] == ["", "int8", "int4"]
    assert len({built["native", kind].fingerprint for kind in ("none", "int8", "int4")}) == 3
    assert built["torch", "int8"].quantization == "int8"


def test_the_torch_path_says_that_it_gains_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_huggingface_directory(tmp_path / "tiny")
    build_engine(EngineConfig(path, kernels="torch", quantization="int8", num_blocks=80, num_threads=1))
    assert "no faster, no smaller" in caplog.text


def test_a_quantised_file_is_not_quantised_again(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", matrix_type=gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(CheckpointError, match="is quantised already, as Q8_0; leave quantization out"):
        build_engine(EngineConfig(path, quantization="int4"))


def test_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"quantization: 'int8' is for CPUs; on device 'cuda'"):
        EngineConfig(Path("model"), device="cuda", quantization="int8")


def test_the_device_decides_about_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_huggingface_directory(tmp_path / "tiny")
    config = EngineConfig(path, device="auto", quantization="int8", kernels="torch", num_blocks=80, num_threads=1)
    monkeypatch.setattr("engine.build.open_device", lambda name: torch.device("cuda", 0))
    with pytest.raises(DeviceError, match=r"quantization: 'int8' is for CPUs, and device 'auto' is cuda:0 here"):
        build_engine(config)
    monkeypatch.setattr("engine.build.open_device", lambda name: torch.device("cpu"))
    assert build_engine(config).facts.quantization == "int8"


def test_a_matrix_that_is_read_value_by_value() -> None:
    """Random weights have no stored form."""
    source = StateWeights(tiny_state())
    matrix = float_matrix(source, "model.layers.0.mlp.up_proj.weight")
    assert torch.equal(_values(matrix), source.read("model.layers.0.mlp.up_proj.weight"))
