"""Reader of GGUF files: metadata and tensor directory, every length checked before it is believed.

The file is mapped, not read; tensor bytes are views into the map. Little-endian versions 2 and 3.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import CheckpointError
from engine.model.quant import QUANT_TYPES, quant_type_name

Scalar: TypeAlias = int | float | bool | str
Value: TypeAlias = "Scalar | list[Value]"

_MAGIC = b"GGUF"
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_MIN_KEY_VALUE_SIZE = 8 + 1 + 4 + 1
_MIN_TENSOR_SIZE = 8 + 1 + 4 + 4 + 8
_MAX_DIMENSIONS = 4
_MAX_NESTING = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor directory. `shape` is row-major, as torch has it."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # from the start of the file
    size: int  # bytes; 0 when the type is unknown


class GgufFile:
    """A mapped GGUF file. Raises CheckpointError for anything that is not one, or not all of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # An empty file cannot be mapped.
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read as a GGUF file: {error}") from error
        cursor = _Cursor(self._map, path)
        num_tensors, num_values = _read_header(cursor)
        self.metadata: dict[str, Value] = {}
        for _ in range(num_values):
            key = cursor.string("a metadata key")
            if key in self.metadata:
                raise cursor.error(f"metadata key {key!r} occurs twice")
            self.metadata[key] = cursor.value(cursor.number(4), key)
        directory = [cursor.tensor() for _ in range(num_tensors)]
        self.tensors = _locate(directory, cursor, self._alignment(cursor))

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._map)

    def data(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as stored: a read-only view of the mapped file."""
        return np.frombuffer(self._map, dtype=np.uint8, count=tensor.size, offset=tensor.offset)

    def _alignment(self, cursor: _Cursor) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise cursor.error(f"general.alignment: {alignment!r} is not a power of two up to 1048576")
        return alignment


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """Returns the numbers of tensors and of metadata values."""
    if cursor.take(4, "the magic bytes") != _MAGIC:
        raise cursor.error("does not start with 'GGUF'; is it another format?")
    version = cursor.number(4)
    if version in (0x02000000, 0x03000000):
        raise cursor.error("is big-endian; only little-endian GGUF is read")
    if version not in (2, 3):
        raise cursor.error(f"is GGUF version {version}; versions 2 and 3 are read")
    num_tensors, num_values = cursor.number(8), cursor.number(8)
    cursor.expect(num_tensors, _MIN_TENSOR_SIZE, "tensors")
    cursor.expect(num_values, _MIN_KEY_VALUE_SIZE, "metadata values")
    return num_tensors, num_values


def _locate(directory: list[GgufTensor], cursor: _Cursor, alignment: int) -> dict[str, GgufTensor]:
    """Turns offsets into the data section into file offsets, and checks that all data is there."""
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for entry in directory:
        if entry.name in tensors:
            raise cursor.error(f"tensor {entry.name!r} occurs twice")
        offset = start + entry.offset
        if entry.offset % alignment or offset + entry.size > cursor.size:
            raise cursor.error(
                f"tensor {entry.name!r} lies at bytes {offset} to {offset + entry.size} of {cursor.size}; "
                "the file is truncated or damaged, fetch it again"
            )
        tensors[entry.name] = GgufTensor(entry.name, entry.shape, entry.type_id, offset, entry.size)
    return tensors


class _Cursor:
    """A position in the mapped file that never moves past its end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self._path = path
        self.position = 0
        self.size = len(data)

    def error(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {message}")

    def expect(self, count: int, min_size: int, what: str) -> None:
        """Refuses a count that what is left of the file cannot hold."""
        if count * min_size > self.size - self.position:
            raise self.error(
                f"claims {count} {what}, more than its {self.size} bytes can hold; "
                "the file is truncated or damaged, fetch it again"
            )

    def take(self, count: int, what: str) -> bytes:
        self.expect(count, 1, f"bytes for {what}")
        begin = self.position
        self.position += count
        return self._data[begin : self.position]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size, "a number"), "little")

    def string(self, what: str) -> str:
        data = self.take(self.number(8), what)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.error(f"{what} is not UTF-8: {error}") from error

    def value(self, type_id: int, key: str, depth: int = 0) -> Value:
        if type_id == _STRING:
            return self.string(key)
        if type_id == _ARRAY:
            return self._array(key, depth)
        scalar = _SCALARS.get(type_id)
        if scalar is None:
            raise self.error(f"metadata {key!r} has the unknown type {type_id}")
        value: Scalar = scalar.unpack(self.take(scalar.size, key))[0]
        return value

    def _array(self, key: str, depth: int) -> Value:
        if depth == _MAX_NESTING:
            raise self.error(f"metadata {key!r} nests arrays deeper than {_MAX_NESTING}")
        type_id, count = self.number(4), self.number(8)
        scalar = _SCALARS.get(type_id)
        if scalar is None:
            self.expect(count, 8, f"elements of {key!r}")
            return [self.value(type_id, key, depth + 1) for _ in range(count)]
        self.expect(count, scalar.size, f"elements of {key!r}")
        data = self.take(count * scalar.size, key)
        return [item for (item,) in scalar.iter_unpack(data)]

    def tensor(self) -> GgufTensor:
        """Reads a directory entry; `offset` is still relative to the data section."""
        name = self.string("a tensor name")
        num_dimensions = self.number(4)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise self.error(f"tensor {name!r} has {num_dimensions} dimensions")
        # GGUF lists the fastest dimension first.
        shape = tuple(self.number(8) for _ in range(num_dimensions))[::-1]
        type_id, offset = self.number(4), self.number(8)
        if not all(0 < extent < 1 << 40 for extent in shape):
            raise self.error(f"tensor {name!r} has the shape {list(shape)}")
        return GgufTensor(name, shape, type_id, offset, self._tensor_size(name, shape, type_id))

    def _tensor_size(self, name: str, shape: tuple[int, ...], type_id: int) -> int:
        quant = QUANT_TYPES.get(type_id)
        if quant is None:
            return 0
        if shape[-1] % quant.block_elements:
            raise self.error(
                f"tensor {name!r}: rows of {shape[-1]} are no multiple of {quant.block_elements}, "
                f"the block of {quant_type_name(type_id)}"
            )
        return prod(shape) // quant.block_elements * quant.block_bytes
