"""The import rules of ARCHITECTURE.md, read from syntax trees, and what a fresh interpreter really loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"engine", "services", "gateway", "muster", "tests", "benchmarks", "examples"}

# One technology, one folder: who may import what, by path prefix; the longest matching prefix decides.
FORBIDDEN: dict[str, set[str]] = {
    "engine": {
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "google",
        "muster",
        "services",
        "gateway",
        "tests",
        "starlette",
        "uvicorn",
    },
    "gateway": {"engine", "torch", "numpy", "services", "tests"},
    "services": {
        "engine",
        "torch",
        "numpy",
        "gateway",
        "tests",
        "starlette",
        "uvicorn",
        "tokenizers",
        "jinja2",
    },
    "services/engine": {"torch", "gateway", "tests", "starlette", "uvicorn"},
    "services/gateway": {"engine", "torch", "numpy", "tests", "starlette", "uvicorn", "tokenizers", "jinja2"},
    "services/offline": {"torch", "numpy", "tests", "starlette", "uvicorn", "tokenizers", "jinja2"},
    "protos": {"engine", "services", "gateway", "tests", "torch"},
    "benchmarks": {"engine", "services", "torch", "tests"},
}
ONLY_HOME = {
    "llguidance": "engine",
    "torch": "engine",
    "tokenizers": "gateway",
    "jinja2": "gateway",
    "starlette": "gateway",
    "uvicorn": "gateway",
    "smg_grpc_proto": "gateway/smg",
    "ray": "services/ray",
}


def source_files() -> list[Path]:
    folders = [ROOT / name for name in ("engine", "services", "gateway", "protos")]
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def handwritten_files() -> list[Path]:
    return [path for path in source_files() if not path.is_relative_to(ROOT / "protos")]


def imported_roots(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yields (line, root package, full name) of every absolute import, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module.split(".")[0], node.module


def forbidden_for(path: str) -> set[str]:
    prefixes = [prefix for prefix in FORBIDDEN if path.startswith(prefix + "/")]
    return FORBIDDEN[max(prefixes, key=len)] if prefixes else set()


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_flow_one_way(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text())
    broken = [
        f"{name}:{line} imports {full}"
        for line, root, full in imported_roots(tree)
        if root in forbidden_for(name) or (root in ONLY_HOME and not name.startswith(ONLY_HOME[root] + "/"))
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("path", handwritten_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_wire_types_are_written_wire(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "muster":
            spelled = [(alias.name, alias.asname) for alias in node.names]
            assert node.module == "muster", f"{name}:{node.lineno}: write `from muster import v1 as wire`"
            assert spelled == [("v1", "wire")], f"{name}:{node.lineno}: write `from muster import v1 as wire`"


@pytest.mark.parametrize(
    "module",
    [
        "services.cli.main",
        "services.head.server",
        "services.cli.doctor_command",
        "services.launcher.launcher",
        "services.gateway.server",
        "services.offline.runner",
        "gateway.app",
    ],
)
def test_control_processes_load_no_torch(module: str) -> None:
    """Catches indirect imports: a control process starts at once and holds no CUDA context."""
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'engine', 'numpy', 'llguidance', 'ray'}\n"
        "heavy = sorted({name.split('.')[0] for name in sys.modules} & heavy)\n"
        "sys.exit(f'loads {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_homes_for_leftovers() -> None:
    leftovers = {"common", "utils", "helpers", "misc"}
    found = [str(path.relative_to(ROOT)) for path in source_files() if leftovers & {path.stem, path.parent.name}]
    assert not found, found


def test_top_level_is_what_people_expect() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    folders = {
        "protos",
        "services",
        "gateway",
        "engine",
        "tests",
        "docs",
        "deploy",
        "examples",
        "benchmarks",
        ".ci",
    }
    pages = {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"}
    expected = folders | pages | {"buf.yaml", "pyproject.toml", "Makefile", ".gitignore"}
    assert {name.split("/")[0] for name in listed if name} <= expected
