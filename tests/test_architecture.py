"""The house keeps its rules: floors, no cycles, no hidden imports, a short round, a map with every room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "varangian"

LATE = {
    "fcntl",
    "mlflow",
    "wandb",
    "h5netcdf",
    "h5py",
    "matplotlib",
    "networkx",
    "pandas",
    "PIL",
    "plotly",
    "pooch",
    "pymetis",
    "ray",
    "rich",
    "scipy",
    "tensorboard",
    "torch",
    "zenoh",
}
"""Packages that may be imported inside a function: heavy or optional ones, and what only some systems have."""


@cache
def modules() -> dict[str, Path]:
    """Every module by its name; a package by the name of its folder."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Everything a file imports, also for type checkers alone, and whether it does so inside a function."""

    def walk(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0 and child.module is not None, f"{path}: relative import"
                yield from ((f"{child.module}.{alias.name}", inside) for alias in child.names)
            yield from walk(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), False)


def module_of(name: str) -> str:
    """The module that an imported name is, or is defined in."""
    return name if name in modules() else name.rpartition(".")[0]


def test_no_module_needs_itself() -> None:
    graph = nx.DiGraph()
    for name, path in modules().items():
        for imported, _ in imports(path):
            if imported.startswith("varangian") and module_of(imported) != name:
                graph.add_edge(name, module_of(imported))
    cycles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert not cycles


@pytest.mark.parametrize("name", modules())
def test_only_heavy_packages_are_imported_late(name: str) -> None:
    late = {imported.partition(".")[0] for imported, inside in imports(modules()[name]) if inside}
    assert late <= LATE


def test_the_top_of_the_package_can_be_taken_in_at_a_glance() -> None:
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 14, entries


def test_every_module_is_on_the_map() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `([\w/]+\.py)` \|", text, flags=re.MULTILINE))
    there = {str(path.relative_to(PACKAGE)) for path in modules().values() if path.name != "__init__.py"}
    assert there - told == set(), "modules that the map leaves out"
    assert told - there == set(), "modules that are only on the map"


def test_the_round_is_one_page_without_machinery() -> None:
    path = PACKAGE / "engine" / "round.py"
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    words = "thread|block|compil|device|cuda|memory budget|chunk|kernel"
    assert not re.findall(words, text.partition('"""')[2], flags=re.IGNORECASE)
