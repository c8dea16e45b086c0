"""The C interface of the native library, typed."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_void_p
from enum import IntEnum
from pathlib import Path

# Best first.
INSTRUCTION_SETS = ("amx", "avx512bf16", "avx512", "avx2", "portable")


# GGUF's numbers of the storage types that the library reads in their own blocks.
TYPE_IDS = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "BF16": 30,
}


class Slot(IntEnum):
    """A linear map of the model; the last four exist once per layer."""

    EMBEDDING = 0
    HEAD = 1
    QKV = 2
    OUTPUT = 3
    GATE_UP = 4
    DOWN = 5


class Norm(IntEnum):
    """A vector of norm weights; all but the first exist once per layer."""

    FINAL = 0
    ATTENTION = 1
    MLP = 2
    QUERY = 3
    KEY = 4


class Shape(ctypes.Structure):
    """The model's sizes; `window` 0 means that a token sees all before it."""

    _fields_ = (
        ("vocab_size", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("window", c_int32),
        ("norm_eps", c_float),
        ("reserved", c_int32),
    )


class Plan(ctypes.Structure):
    """Addresses of a step's layout; copied by the call."""

    _fields_ = (
        ("num_sequences", c_int32),
        ("num_tokens", c_int32),
        ("query_lens", c_void_p),
        ("context_lens", c_void_p),
        ("slots", c_void_p),
        ("block_tables", c_void_p),
        ("table_width", c_int32),
        ("reserved", c_int32),
    )


class Decode(ctypes.Structure):
    """A step of sequences with one new token each: addresses, and what the call writes how long each part took."""

    _fields_ = (
        ("num_sequences", c_int32),
        ("table_width", c_int32),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("block_tables", c_void_p),
        ("logits", c_void_p),
        ("best", c_void_p),
        ("forward_s", c_double),
        ("logits_s", c_double),
        ("best_s", c_double),
    )


_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "muster_has_kernels": (c_int, [c_char_p]),
    "muster_model_new": (c_void_p, [POINTER(Shape), c_char_p, c_int, c_int, POINTER(c_float)]),
    "muster_spare_decisions": (None, [POINTER(c_double), POINTER(c_double), POINTER(c_double), c_int, c_void_p]),
    "muster_model_free": (None, [c_void_p]),
    "muster_model_set_norm": (c_int, [c_void_p, c_int, c_int, c_void_p, c_int]),
    "muster_model_add_matrix": (
        c_int,
        [c_void_p, c_int, c_int, c_int, c_void_p, c_int, c_int, c_void_p, c_void_p],
    ),
    "muster_quantise": (c_int, [c_int, c_void_p, c_int, c_int, c_int, c_void_p, c_int]),
    "muster_model_tie_head": (None, [c_void_p]),
    "muster_model_set_cache": (None, [c_void_p, c_void_p, c_void_p, c_int64, c_int]),
    "muster_plan": (None, [c_void_p, POINTER(Plan)]),
    "muster_forward": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "muster_logits": (None, [c_void_p, c_void_p, c_int, c_void_p]),
    "muster_decode": (None, [c_void_p, POINTER(Decode)]),
    "muster_first_best": (c_int, [c_void_p, c_int]),
    "muster_attend": (None, [c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_void_p]),
    "muster_linear": (None, [c_void_p, c_int, c_int, c_void_p, c_int, c_void_p]),
}


def load_library(path: Path) -> ctypes.CDLL:
    """Raises OSError when the file is no library for this machine."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def best_instruction_set(library: ctypes.CDLL) -> str | None:
    """The best kernels that this processor runs, no better than MUSTER_CPU_ISA allows; None when there are none.

    Raises ValueError for a MUSTER_CPU_ISA that is none of INSTRUCTION_SETS and not "none".
    """
    limit = os.environ.get("MUSTER_CPU_ISA") or INSTRUCTION_SETS[0]
    if limit == "none":
        return None
    if limit not in INSTRUCTION_SETS:
        raise ValueError(f"MUSTER_CPU_ISA: {limit!r} is unknown; choose one of {', '.join(INSTRUCTION_SETS)}, none")
    for name in INSTRUCTION_SETS[INSTRUCTION_SETS.index(limit) :]:
        if library.muster_has_kernels(name.encode()):
            return name
    return None
