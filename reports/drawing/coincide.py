"""Curves that lie on each other: a picture has to say so, as it shows only the one on top."""

from collections.abc import Hashable, Mapping

import numpy as np

from reports.drawing.style import shorten
from reports.verdict.significance import joined
from simulator.results.records import Floats

NEAR = 0.005  # of the picture's range: what is nearer cannot be seen apart


def coinciding(curves: Mapping[str, Floats], span: float) -> list[list[str]]:
    """Groups of two labels or more whose values differ nowhere by more than the width of a line.

    `span` is the range that the picture shows; a value that is missing in both is no difference.
    """
    groups: list[list[str]] = []
    for label, values in curves.items():
        for group in groups:
            first = curves[group[0]]
            if first.shape != values.shape or not len(values):
                continue
            gap = np.where(np.isnan(first) & np.isnan(values), 0.0, np.abs(first - values))
            if (gap <= NEAR * span).all():
                group.append(label)
                break
        else:
            groups.append([label])
    return [group for group in groups if len(group) > 1]


def equal(found: Mapping[str, Hashable]) -> list[list[str]]:
    """Groups of two labels or more that have equal values."""
    groups: dict[Hashable, list[str]] = {}
    for label, value in found.items():
        groups.setdefault(value, []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def said(groups: list[list[str]], where: str = "") -> str:
    """The sentence for a caption; nothing where no curves coincide."""
    return "".join(f" {joined(shorten(label) for label in group)} coincide{where}." for group in groups)
