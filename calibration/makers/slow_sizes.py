"""Experts take no longer for some tokens than for more of them.

A kernel that changes with the tokens costs something at its border, and an uneven load is drawn anew for each number of
tokens. Beyond `MOST` the source's run chose a bad kernel at some sizes, as `longer_parts` says of whole cells: of
TensorRT-LLM's tables on Hopper 1 to 2 % of the times in bf16 and fp8 are so, up to ten times as long as the next ones.
Such times are left out, and so filled from their neighbours, unless `KERNEL` of the cells are as slow there: then the
kernel is.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.makers.longer_parts import MOST
from calibration.tables_rows import KERNEL
from simulator.timing.profile.surface import Array

Place = tuple[int, str, str]  # of a list of times: its shape, its part and its load


def without_slow_sizes(document: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of tables of experts without the times that are longer than one of more tokens."""
    left, precisions = dict(document["left_out"]), {}
    for name, part in document["precisions"].items():
        shapes = part["shapes"]
        slow = slow_sizes(shapes)
        count = sum(int(each.sum()) for each in slow.values())
        if count:
            known = sum(value is not None for _, values in _lists(shapes) for value in values)
            left[f"sizes of experts {name}"] = f"{count:,} of {known:,} times, longer than one of more tokens"
            shapes = [
                {**shape, "parallel": {key: _kept(of, (row, key), slow) for key, of in shape["parallel"].items()}}
                for row, shape in enumerate(shapes)
            ]
        precisions[name] = {**part, "shapes": shapes}
    return {**document, "left_out": left, "precisions": precisions}


def slow_sizes(shapes: list[dict[str, Any]]) -> dict[Place, NDArray[np.bool_]]:
    """For each list of times those that are longer than one of more tokens; lists without any are not in it."""
    groups: dict[tuple[int, str], list[tuple[Place, list[int | None]]]] = {}
    for place, values in _lists(shapes):
        kernel = shapes[place[0]]["parallel"][place[1]]["kernel"]
        groups.setdefault((kernel, place[2]), []).append((place, values))
    found = {}
    for group in groups.values():
        log_us = np.array([[np.nan if value is None else value for value in values] for _, values in group]) / 1e3
        slow = log_us > np.log(MOST) + _least_of_more(log_us)
        slow &= slow.sum(axis=0) < KERNEL * (~np.isnan(log_us)).sum(axis=0)
        found.update({place: each for (place, _), each in zip(group, slow, strict=True) if each.any()})
    return found


def _least_of_more(log_us: Array) -> Array:
    """For each size the least time of a larger one; infinite for the last."""
    known = np.where(np.isnan(log_us), np.inf, log_us)
    least = np.minimum.accumulate(known[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([least[:, 1:], np.full((len(least), 1), np.inf)], axis=1)


def _lists(shapes: list[dict[str, Any]]) -> list[tuple[Place, list[int | None]]]:
    return [
        ((row, key, load), values)
        for row, shape in enumerate(shapes)
        for key, part in shape["parallel"].items()
        for load, values in part.items()
        if load != "kernel"
    ]


def _kept(part: dict[str, Any], place: tuple[int, str], slow: dict[Place, NDArray[np.bool_]]) -> dict[str, Any]:
    kept = dict(part)
    for load in part.keys() - {"kernel"}:
        gone = slow.get((*place, load))
        if gone is not None:
            kept[load] = [None if out else value for value, out in zip(part[load], gone, strict=True)]
    return kept
