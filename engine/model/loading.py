"""The door to checkpoints: which format a path holds, and whether its weights are all there."""

from __future__ import annotations

from pathlib import Path

from engine.errors import CheckpointError
from engine.model.checkpoint import Checkpoint
from engine.model.gguf_checkpoint import open_gguf
from engine.model.hf_checkpoint import open_huggingface
from engine.model.weights import expected_shapes


def open_checkpoint(path: Path, *, dummy: bool = False, seed: int = 0) -> Checkpoint:
    """Opens a `.gguf` file or a Hugging Face directory and checks that all its weights fit together.

    With `dummy` the weights are random, a function of `seed`, and only the configuration of a directory is read.
    Raises CheckpointError; nothing large has been allocated then.
    """
    if path.is_dir():
        checkpoint = open_huggingface(path, dummy_seed=seed if dummy else None)
    elif not path.is_file():
        raise CheckpointError(f"{path}: no such file or directory; name a .gguf file or a model directory")
    elif dummy:
        raise CheckpointError(f"{path}: random weights need a directory with a config.json")
    else:
        checkpoint = open_gguf(path)
    check_tensors(path, checkpoint)
    return checkpoint


def check_tensors(path: Path, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError unless the weights are exactly those of the configuration.

    A tensor too many is as wrong as one too few: a bias that nobody adds gives fluent nonsense.
    """
    expected = dict(expected_shapes(checkpoint.config))
    names = checkpoint.weights.names()
    missing = sorted(expected.keys() - names)
    if missing:
        raise CheckpointError(f"{path}: {len(missing)} tensors are missing: {_some(missing)}")
    unknown = sorted(names - expected.keys())
    if unknown:
        raise CheckpointError(
            f"{path}: {len(unknown)} tensors have no place in the architecture "
            f"{checkpoint.config.architecture!r}: {_some(unknown)}"
        )
    for name, shape in expected.items():
        actual = checkpoint.weights.shape(name)
        if actual != shape:
            raise CheckpointError(
                f"{path}: tensor {name!r} has the shape {list(actual)}, the configuration needs {list(shape)}"
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
