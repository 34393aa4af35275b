"""Bare time stamps in the first lines of a JSON Lines file: what their steps say of their unit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from scenarios.traces.format import Head
from scenarios.traces.rows import RowError, json_object


def sampled_stamps(head: Head, key: str) -> list[float]:
    """The finite numbers under `key` in the sampled lines; what is wrong with others is said when they are read."""
    stamps: list[float] = []
    for _, text in head.sample:
        try:
            value: Any = json_object(text).get(key)
            stamps.append(float(value))
        except (RowError, TypeError, ValueError, OverflowError):
            continue
    return [stamp for stamp in stamps if stamp - stamp == 0.0]


def usual_step(stamps: Sequence[float]) -> float | None:
    """The median of the steps between different stamps; None where all are equal."""
    steps = [abs(b - a) for a, b in pairwise(stamps) if b != a]
    return median(steps) if steps else None
