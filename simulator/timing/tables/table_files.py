"""Fields that all tables of kernel times have, numbers as their files hold them, and the nearest version."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from simulator.timing.profile.surface import Array

SCALE = 1e-3  # the value of 1 among the numbers of a file, which are logarithms


@dataclass(frozen=True, slots=True, eq=False)
class VersionTables:
    """Tables of a GPU under a version of an engine. `document` is the JSON, with errors and sources.

    Equal to itself alone: what is composed of tables is kept by them.
    """

    name: str
    gpu: str
    software: str
    document: Mapping[str, Any]


T = TypeVar("T", bound=VersionTables)


def header(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `VersionTables`."""
    return {**{name: str(document[name]) for name in ("name", "gpu", "software")}, "document": document}


def unscaled(values: Sequence[int | None]) -> Array:
    """The logarithms of a file; NaN for null, where nothing was measured."""
    return np.array([np.nan if value is None else value * SCALE for value in values])


def nearest_versions(tables: Iterable[T], gpu: str, software: str) -> list[T]:
    """Sort the tables of a GPU and the same engine, those whose version is nearest to `software` first."""
    wanted = _minor(software)
    found = [each for each in tables if each.gpu == gpu and engine_of(each.software) == engine_of(software)]
    return sorted(found, key=lambda each: (abs(_minor(each.software) - wanted), each.name))


def engine_of(software: str) -> str:
    """The engine of "vLLM 0.19.0"."""
    return software.rpartition(" ")[0]


def _minor(software: str) -> float:
    """The minor number of "vLLM 0.19.0"; 0 where there is none."""
    parts = software.split()[-1].split(".")
    return float(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0.0
