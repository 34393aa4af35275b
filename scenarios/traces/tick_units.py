"""Bare time stamps in the first lines of a file: what their steps say of their unit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from scenarios.traces.format import Head
from scenarios.traces.rows import RowError, json_object, split_csv


def sampled_stamps(head: Head, key: str) -> list[float]:
    """The finite numbers under `key` in the sampled lines; what is wrong with others is said when they are read."""
    stamps: list[float] = []
    place = head.positions.get(key)
    for _, text in head.sample:
        try:
            value: Any = json_object(text).get(key) if place is None else split_csv(text)[place]
            stamps.append(float(value))
        except (RowError, TypeError, ValueError, OverflowError, IndexError):
            continue
    return [stamp for stamp in stamps if stamp - stamp == 0.0]


def usual_step(stamps: Sequence[float]) -> float | None:
    """The median of the steps between different stamps; None where all are equal."""
    steps = [abs(b - a) for a, b in pairwise(stamps) if b != a]
    return median(steps) if steps else None
