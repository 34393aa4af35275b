"""The wheel holds what users run: every module in it is reached from the command line or from a name in Python."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_house import FIND, PYPROJECT, ROOT, TOPS, is_data, python_files

ENTRIES = ("batchlab", "scenarios", *(text.partition(":")[0] for text in PYPROJECT["project"]["scripts"].values()))
FOUND_BY_PLACE = (
    "reports.exports.formats",
    "reports.plots",
    "scenarios.cli",
    "scenarios.measured.formats",
    "scenarios.schema.arrivals",
    "scenarios.traces.formats",
    "simulator.fleet.routers",
    "simulator.policies",
    "simulator.policies.real.programs",
    "simulator.queues",
)
"""Packages whose modules are loaded by name, or run as programs: whatever lies in them is reached."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name, packages included."""
    found: dict[str, Path] = {}
    for path in python_files():
        if path.parts[0] in TOPS and not is_data(path):
            parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
            found[".".join(parts)] = path
    return found


def packages() -> set[str]:
    return {name for name, path in modules().items() if path.name == "__init__.py"}


def in_the_wheel() -> set[str]:
    """The modules that setuptools takes along, by its rules: the packages that are included."""
    taken = {name for name in packages() if any(fnmatch.fnmatchcase(name, pattern) for pattern in FIND["include"])}
    files = {name for name in set(modules()) - packages() if name.rpartition(".")[0] in taken}
    return taken | files


def named(node: ast.AST) -> Iterator[str]:
    """The modules that a piece of code may load: its imports, and texts that are a module's name."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        for other in node.orelse:
            yield from named(other)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
        yield node.value.partition(":")[0]  # `module:NAME` too
    for child in ast.iter_child_nodes(node):
        yield from named(child)


def with_parents(name: str) -> Iterator[str]:
    """A module and the packages that it lies in, as far as they are ours."""
    while name:
        if name in modules():
            yield name
        name = name.rpartition(".")[0]


@cache
def reached(entries: tuple[str, ...] = ENTRIES) -> set[str]:
    """Every module that is loaded on some path from the entries."""
    seen: set[str] = set()
    queue = [*entries, *(name for name in modules() if name.rpartition(".")[0] in FOUND_BY_PLACE)]
    while queue:
        for name in with_parents(queue.pop()):
            if name not in seen:
                seen.add(name)
                queue += named(ast.parse(python_files()[modules()[name]]))
    return seen


def test_everything_in_the_wheel_is_reached() -> None:
    assert len(in_the_wheel()) > 400
    assert sorted(in_the_wheel() - reached()) == []


def test_everything_that_is_reached_is_in_the_wheel() -> None:
    assert sorted(reached() - in_the_wheel()) == []


@pytest.mark.parametrize("name", ["docs.writers.commands", "tools.kernel_bench.speed", "tools.tables.kernels"])
def test_tools_for_maintainers_are_not(name: str) -> None:
    assert (ROOT / name.replace(".", "/")).with_suffix(".py").exists()
    assert name not in in_the_wheel()


def test_what_is_found_by_place_is_there() -> None:
    assert set(FOUND_BY_PLACE) <= packages()
