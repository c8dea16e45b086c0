"""The GGUF reader against the reference implementation, and against damage."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import CheckpointError
from engine.model.gguf import GgufFile
from engine.model.quant import QUANT_TYPES, dequantize
from tests.support.tiny_model import TINY_CONFIG, tiny_state, write_gguf


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _file(path: Path, *, num_tensors: int = 0, num_values: int = 0, body: bytes = b"", version: int = 3) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_values) + body)
    return path


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


def test_metadata_and_directory(tiny_gguf: Path) -> None:
    file = GgufFile(tiny_gguf)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.embedding_length"] == TINY_CONFIG.hidden_size
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert len(tokens) == TINY_CONFIG.vocab_size
    assert len(file.tensors) == len(tiny_state())
    tensor = file.tensors["blk.1.ffn_down.weight"]
    assert tensor.shape == (TINY_CONFIG.hidden_size, TINY_CONFIG.intermediate_size)
    values = dequantize(file.data(tensor), tensor.type_id).reshape(tensor.shape)
    assert np.array_equal(values, tiny_state()["model.layers.1.mlp.down_proj.weight"].numpy())


@pytest.mark.parametrize("type_id", sorted(QUANT_TYPES), ids=lambda i: QUANT_TYPES[i].name)
def test_dequantisation_is_bit_exact(type_id: int) -> None:
    """On random bytes, which also hold infinities, NaNs and denormals as scales."""
    size = QUANT_TYPES[type_id].block_bytes
    blocks = np.random.default_rng(type_id).integers(0, 256, (2000, size), dtype=np.uint8)
    with np.errstate(all="ignore"):
        ours = dequantize(blocks.reshape(-1), type_id)
        theirs = gguf.dequantize(blocks, gguf.GGMLQuantizationType(type_id)).reshape(-1)
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_every_truncation_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    data = tiny_gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    lengths = [*range(40), *range(40, 12000, 97), len(data) // 2, len(data) - 1]
    for length in lengths:
        cut.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            GgufFile(cut)


def test_damaged_bytes_never_escape_as_other_errors(tiny_gguf: Path, tmp_path: Path) -> None:
    data = tiny_gguf.read_bytes()
    generator = np.random.default_rng(0)
    damaged = tmp_path / "damaged.gguf"
    for _ in range(300):
        copy = bytearray(data)
        for position in generator.integers(0, 12000, 3):
            copy[position] = generator.integers(0, 256)
        damaged.write_bytes(copy)
        with suppress(CheckpointError):
            GgufFile(damaged)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_tensors": 1 << 60}, r"claims 1152921504606846976 tensors"),
        ({"num_values": 1 << 60}, r"claims 1152921504606846976 metadata values"),
        ({"num_values": 1, "body": struct.pack("<Q", 1 << 62) + bytes(64)}, "a metadata key"),
        ({"num_values": 1, "body": _string("k") + struct.pack("<IQ", 8, 1 << 62) + bytes(64)}, "bytes for k"),
        ({"num_values": 1, "body": _string("k") + struct.pack("<IIQ", 9, 4, 1 << 61) + bytes(64)}, "elements of 'k'"),
        ({"num_values": 1, "body": _string("k") + struct.pack("<IIQ", 9, 8, 1 << 61) + bytes(64)}, "elements of 'k'"),
        ({"num_values": 1, "body": _string("k") + struct.pack("<I", 77) + bytes(64)}, "unknown type 77"),
        ({"num_values": 1, "body": _string("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9}, "nests"),
        ({"version": 1}, "version 1; versions 2 and 3 are read"),
        ({"version": 0x03000000}, "big-endian"),
        (
            {"num_tensors": 1, "body": _string("t") + struct.pack("<IQIQ", 1, 1 << 39, 0, 0) + bytes(64)},
            "truncated or damaged",
        ),
        ({"num_tensors": 1, "body": _string("t") + struct.pack("<IQIQ", 9, 1, 0, 0) + bytes(64)}, "9 dimensions"),
        ({"num_tensors": 1, "body": _string("t") + struct.pack("<IQIQ", 1, 33, 3, 0) + bytes(64)}, "multiple of 32"),
        (
            {"num_values": 2, "body": (_string("k") + struct.pack("<IB", 0, 1)) * 2 + bytes(32)},
            "'k' occurs twice",
        ),
    ],
)
def test_absurd_headers_are_refused(tmp_path: Path, fields: dict[str, int | bytes], message: str) -> None:
    path = _file(tmp_path / "absurd.gguf", **fields)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=message):
        GgufFile(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CheckpointError, match="does not start with 'GGUF'"):
        GgufFile(path)
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be read"):
        GgufFile(path)
