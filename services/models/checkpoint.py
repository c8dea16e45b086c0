"""Turns the MODEL argument into a checkpoint on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from services.models import default_model
from services.models.errors import ModelNotFoundError

__all__ = ["Checkpoint", "ModelNotFoundError", "resolve_model"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A .gguf file or a Hugging Face directory, and the name clients ask for when no other is given."""

    path: Path
    name: str


def resolve_model(argument: str | None, cache: Path) -> Checkpoint:
    """`argument` is a path, the default model's name, or None for the default model, which is fetched when needed.

    Raises ModelNotFoundError, which says what to give instead.
    """
    if argument is None or argument == default_model.NAME:
        return Checkpoint(default_model.fetch(cache), default_model.NAME)
    path = Path(argument).expanduser().absolute()
    if path.is_dir():
        return _directory(path)
    if not path.is_file():
        raise ModelNotFoundError(
            f"MODEL {argument!r}: no such file or directory; give a .gguf file, a Hugging Face directory "
            f"with config.json, or leave MODEL out for {default_model.NAME}"
        )
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelNotFoundError(
            f"MODEL {argument!r} is not a GGUF file; give a .gguf file or the directory it lies in"
        )
    return Checkpoint(path, path.stem)


def _directory(path: Path) -> Checkpoint:
    if (path / "config.json").is_file():
        return Checkpoint(path, path.name)
    found = sorted(path.glob("*.gguf"))
    if len(found) == 1:
        return Checkpoint(found[0], found[0].stem)
    if found:
        names = ", ".join(each.name for each in found)
        raise ModelNotFoundError(f"MODEL {str(path)!r} holds several .gguf files: name one of {names}")
    raise ModelNotFoundError(f"MODEL {str(path)!r} has neither config.json nor a .gguf file; give another directory")
