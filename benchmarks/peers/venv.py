"""A virtual environment for one peer, which knows whether it is complete."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class PeerError(Exception):
    """A peer can't be installed or started; says which and why."""


class Venv:
    """In `folder`. Every step looks first at what is there, so an interrupted installation is completed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._marker = folder / ".muster-complete"

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    @property
    def site_packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def is_complete(self, recipe: str) -> bool:
        """Whether `complete` was called for this recipe, which says in one line how the peer is installed."""
        return self._marker.is_file() and self._marker.read_text().strip() == recipe

    def complete(self, recipe: str) -> None:
        self._marker.write_text(recipe + "\n")

    def create(self) -> None:
        if not (self.program("python").exists() and self.program("pip").exists()):
            run_step([sys.executable, "-m", "venv", str(self.folder)])

    def install(self, name: str, version: str, environment: dict[str, str] | None = None) -> None:
        """`environment` is added to ours.

        pip writes a distribution's metadata after its dependencies', so that it proves them too.
        """
        if not self.has(name, version):
            self.pip("install", f"{name}=={version}", environment=environment)

    def uninstall(self, names: Sequence[str]) -> None:
        present = [name for name in names if any(self.site_packages.glob(f"{name}-*.dist-info"))]
        if present:
            self.pip("uninstall", "-y", *present)

    def has(self, name: str, version: str) -> bool:
        return (self.site_packages / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA").is_file()

    @property
    def path(self) -> str:
        """PATH with its programs first."""
        return f"{self.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"

    def pip(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [str(self.program("python")), "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
        run_step(command, None if environment is None else {**os.environ, **environment})


def run_step(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """Runs a command to its end and returns its output. Raises PeerError with the last lines when it fails."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise PeerError(f"`{' '.join(command)}` ended with code {done.returncode}:\n{last}")
    return done.stdout
