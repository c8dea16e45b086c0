"""Whether the native kernels can serve a model here, and why not where they cannot."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.model.config import ModelConfig
from engine.model.quantise import Quantise
from engine.model.weights import WeightSource
from engine.native.compiler import NativeBuildError, library_path
from engine.native.library import best_instruction_set, load_library
from engine.native.native_model import NativeModel, why_not
from engine.native.quantise import native_quantise


class NativeUnavailableError(Exception):
    """The native kernels cannot be used; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class NativeKernels:
    """The loaded library and the instruction set that it runs with on this machine."""

    library: ctypes.CDLL
    instruction_set: str

    def quantise(self, num_threads: int) -> Quantise:
        """The library's quantiser."""
        return native_quantise(self.library, num_threads)

    def load(
        self,
        config: ModelConfig,
        weights: WeightSource,
        *,
        num_threads: int,
        num_spare_threads: int,
        progress: Callable[[int, int], None],
    ) -> NativeModel:
        """The model with all its weights. `progress` is called with layers loaded and their number."""
        return NativeModel(
            self.library,
            self.instruction_set,
            config,
            weights,
            num_threads=num_threads,
            num_spare_threads=num_spare_threads,
            progress=progress,
        )


def find_kernels(config: ModelConfig, cache_directory: Path | None = None) -> NativeKernels:
    """Kernels that run a model of this shape on this machine, compiled into `cache_directory` where they are missing.

    Raises NativeUnavailableError.
    """
    reason = why_not(config)
    if reason is not None:
        raise NativeUnavailableError(f"the native kernels do not run this model: {reason}")
    try:
        library = load_library(library_path(cache_directory))
        instruction_set = best_instruction_set(library)
    except (NativeBuildError, OSError, ValueError) as error:
        raise NativeUnavailableError(str(error)) from error
    if instruction_set is None:
        raise NativeUnavailableError("the processor has no AVX2, or MUSTER_CPU_ISA hides it")
    return NativeKernels(library, instruction_set)
