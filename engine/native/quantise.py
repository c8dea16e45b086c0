"""Quantisation in native code: the bytes of engine.model.quantise, found faster."""

from __future__ import annotations

import ctypes

import numpy as np

from engine.model.quantise import NOT_FINITE, Quantise
from engine.model.weights import StoredMatrix
from engine.native.library import TYPE_IDS

_BLOCK_BYTES = {"Q8_0": 34, "Q5_1": 24, "Q4_1": 20}


def native_quantise(library: ctypes.CDLL, num_threads: int) -> Quantise:
    """The library's quantiser, on `num_threads` threads."""

    def quantise(matrix: StoredMatrix, kind: str) -> StoredMatrix:
        """See engine.model.quantise.quantise_matrix."""
        rows, cols = matrix.shape
        out = np.empty(rows * cols // 32 * _BLOCK_BYTES[kind], dtype=np.uint8)
        data, from_type, to_type = matrix.data, TYPE_IDS[matrix.kind], TYPE_IDS[kind]
        code = library.muster_quantise(from_type, data.ctypes.data, rows, cols, to_type, out.ctypes.data, num_threads)
        if code != 0:
            raise ValueError(NOT_FINITE if code == -2 else f"{matrix.kind} in rows of {cols} cannot become {kind}")
        return StoredMatrix(kind, matrix.shape, out, matrix.row_order)

    return quantise
