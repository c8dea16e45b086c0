"""Reader of safetensors files, single or sharded, with bounds: a JSON header, then raw tensors. No pickle.

The files are mapped; reading a tensor copies it.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.model.json_files import read_json_object

_MAX_HEADER_SIZE = 100_000_000
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
READABLE_DTYPES = frozenset(_DTYPES)
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class SafetensorsEntry:
    """Where a tensor lies in its file; `begin` is counted from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


class SafetensorsFile:
    """One mapped file. Raises CheckpointError for anything that is not entirely one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read as a safetensors file: {error}") from error
        self.entries = self._read_directory()

    def read(self, name: str) -> Tensor:
        """A copy of the tensor in its stored dtype, one of F32, F16 and BF16."""
        entry = self.entries[name]
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is stored as {entry.dtype}; {', '.join(_DTYPES)} can be loaded"
            )
        data = bytearray(self.data(name))  # torch wants writable memory
        return torch.frombuffer(data, dtype=dtype).reshape(entry.shape)

    def data(self, name: str) -> memoryview:
        """The tensor's bytes as stored: a read-only view of the mapped file."""
        entry = self.entries[name]
        return memoryview(self._map)[entry.begin : entry.begin + entry.size]

    def _read_directory(self) -> dict[str, SafetensorsEntry]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_SIZE):
            raise CheckpointError(
                f"{self.path}: claims a header of {length} bytes in a file of {size}; "
                "the file is truncated or damaged, fetch it again"
            )
        try:
            header = json.loads(self._map[8 : 8 + length])
            return {
                name: self._entry(name, fields, 8 + length) for name, fields in header.items() if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: its header is damaged: {error!r}") from error

    def _entry(self, name: str, fields: dict[str, object], start: int) -> SafetensorsEntry:
        dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
        if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
            raise TypeError(f"tensor {name!r} is described by {fields}")
        begin, end = offsets
        numbers = [begin, end, *shape]
        if not all(isinstance(number, int) and number >= 0 for number in numbers) or begin > end:
            raise ValueError(f"tensor {name!r} has the shape {shape} at {offsets}")
        if start + end > len(self._map):
            raise CheckpointError(
                f"{self.path}: tensor {name!r} ends at byte {start + end} of {len(self._map)}; "
                "the file is truncated or damaged, fetch it again"
            )
        if dtype in _DTYPES and prod(shape) * _DTYPES[dtype].itemsize != end - begin:
            raise ValueError(f"tensor {name!r} of shape {shape} and type {dtype} has {end - begin} bytes")
        return SafetensorsEntry(dtype, tuple(shape), start + begin, end - begin)


def open_directory(directory: Path) -> dict[str, SafetensorsFile]:
    """Opens the checkpoint of a directory. Returns the file of each tensor name.

    Reads `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    """
    if (directory / _INDEX).is_file():
        weight_map = read_json_object(directory / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{directory / _INDEX}: has no weight_map")
        return _open_shards(directory, weight_map)
    if (directory / _SINGLE).is_file():
        file = SafetensorsFile(directory / _SINGLE)
        return dict.fromkeys(file.entries, file)
    raise CheckpointError(
        f"{directory}: has neither {_SINGLE} nor {_INDEX}; only safetensors weights are loaded, "
        "convert other formats first"
    )


def _open_shards(directory: Path, weight_map: dict[str, object]) -> dict[str, SafetensorsFile]:
    shards: dict[str, SafetensorsFile] = {}
    result: dict[str, SafetensorsFile] = {}
    for name, file_name in weight_map.items():
        # The index comes from outside and must not lead out of its directory.
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise CheckpointError(f"{directory / _INDEX}: {file_name!r} is not the name of a file beside it")
        if file_name not in shards:
            shards[file_name] = SafetensorsFile(directory / file_name)
        if name not in shards[file_name].entries:
            raise CheckpointError(f"{directory / file_name}: lacks the tensor {name!r} that the index promises")
        result[name] = shards[file_name]
    return result
