"""A bare device: torch, triton and numpy, and wheels that were carried along.

A pure wheel is a zip that Python imports from. simpy has to come as one. annotated_types and sortedcontainers may;
where they do not, stand-ins do for what a campaign needs of them: the limits and descriptions that parameters are
annotated with, and a sorted dict for queues that are not in order of arrival.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from bisect import bisect_left, insort
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

WHEELS = Path(__file__).resolve().parents[2] / "wheels"
FETCH = "pip download --no-deps -d wheels simpy==4.1.2"
_NEEDED = "simpy"


def carry(folder: Path = WHEELS) -> str | None:
    """Make what is carried importable, and stand in for what is not. Returns what is wrong, None where nothing is."""
    for wheel in sorted(folder.glob("*-none-any.whl")):
        if str(wheel) not in sys.path:
            sys.path.append(str(wheel))
    importlib.invalidate_caches()
    if not _is_there(_NEEDED):
        return f"{_NEEDED} is neither installed nor carried in {folder}"
    for name, make in {"annotated_types": _annotated_types, "sortedcontainers": _sortedcontainers}.items():
        if not _is_there(name):
            sys.modules[name] = make()
    return None


def _is_there(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _annotated_types() -> ModuleType:
    """Its classes as the simulator uses them, each with one figure or word."""
    module = ModuleType("annotated_types")
    fields = {"Ge": "ge", "Gt": "gt", "Le": "le", "Lt": "lt", "Unit": "unit", "DocInfo": "documentation"}
    for name, field in fields.items():
        made = dataclasses.make_dataclass(name, [(field, Any)], frozen=True, slots=True)
        setattr(module, name, made)
    module.__dict__["doc"] = module.__dict__["DocInfo"]
    return module


def _sortedcontainers() -> ModuleType:
    module = ModuleType("sortedcontainers")
    module.__dict__["SortedDict"] = SortedDict
    return module


class SortedDict(dict[Any, Any]):
    """A dict in the order of its keys, as far as queues of requests use it: a sorted list beside it."""

    def __init__(self) -> None:
        super().__init__()
        self._order: list[Any] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self:
            insort(self._order, key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        del self._order[bisect_left(self._order, key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order)

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self:
            return super().pop(key, *default)
        value = self[key]
        del self[key]
        return value

    def peekitem(self, index: int = -1) -> tuple[Any, Any]:
        """Key and value at a place in the order."""
        return self._order[index], self[self._order[index]]

    def popitem(self, index: int = -1) -> tuple[Any, Any]:
        """Take out the item at a place in the order."""
        key, value = self.peekitem(index)
        del self[key]
        return key, value

    def values(self) -> Any:
        return [self[key] for key in self._order]

    def items(self) -> Any:
        return [(key, self[key]) for key in self._order]
