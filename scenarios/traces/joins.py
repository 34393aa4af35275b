"""Joins of a trace: requests that wait for the answers of several others (`after_request_ids`)."""

from collections.abc import Sequence

import numpy as np

from scenarios.traces.columns import Columns
from simulator.errors import InputError, did_you_mean
from simulator.workload import Ints

KEY = "after_request_ids"
_FEW = 20_000  # names that are compared to find the one that was meant

Targets = list[tuple[int, ...]]
"""For each row, in file order, the places of the rows that it waits for."""


def targets_of(columns: Columns, names: Sequence[str] | None, file: str, *, whole: bool) -> tuple[Targets | None, int]:
    """Return what the rows wait for, and how many answers they wait for that are not in the part that is read.

    None where no row waits for several. Raises InputError for a request that waits for an unknown one (in a file that
    is read as a `whole`), for itself, for a later one, or in a circle.
    """
    given: list[tuple[str, ...] | None] | None = columns.extra.get(KEY)
    if given is None:
        return None, 0
    own = list(map(str, columns.row)) if names is None else names
    places = {name: place for place, name in enumerate(own)}
    found: Targets = []
    missing = 0
    for place, waits in enumerate(given):
        known = []
        for name in dict.fromkeys(waits or ()):
            target = places.get(name)
            if target is None and whole:
                hint = did_you_mean(name, own[:_FEW]) + "a request_id of the file, or a row of it, counted from 0"
                raise _refused(columns, place, name, "which is no request", file, hint)
            if target is None:
                missing += 1
                continue
            if target == place:
                raise _refused(columns, place, name, "which is itself", file, "leave it out")
            if (columns.arrival[target], target) > (columns.arrival[place], place):
                circle = _waits_for(target, own[place], given, places)
                what = "which waits for it in turn" if circle else "which arrives later"
                hint = (
                    "each request in a circle would wait for another"
                    if circle
                    else "an arrival_time_s as it was recorded"
                )
                raise _refused(columns, place, name, what, file, f"{hint} (line {columns.line[target]})")
            known.append(target)
        found.append(tuple(known))
    return found, missing


def _refused(columns: Columns, place: int, name: str, what: str, file: str, hint: str) -> InputError:
    return InputError(f"{KEY}: the request waits for {name!a}, {what}", file=file, line=columns.line[place], hint=hint)


def _waits_for(place: int, name: str, given: Sequence[tuple[str, ...] | None], places: dict[str, int]) -> bool:
    """Return whether the request at a place waits for the one of this name, directly or not."""
    seen, ahead = {place}, [place]
    while ahead:
        for other in given[ahead.pop()] or ():
            if other == name:
                return True
            if (there := places.get(other)) is not None and there not in seen:
                seen.add(there)
                ahead.append(there)
    return False


def also_after(targets: Targets, after: Ints, place: Ints, copy: Ints, layer: Ints | None) -> list[tuple[int, ...]]:
    """Return for each request of a replay those that it waits for besides `after`.

    `place`, `copy` and `layer` are those of `arrange.Arranged`: a request waits for those of its own copy.
    """
    layers = np.zeros_like(copy) if layer is None else layer
    keys = list(zip(place.tolist(), copy.tolist(), layers.tolist(), strict=True))
    rows = {key: row for row, key in enumerate(keys)}
    return [
        tuple(sorted({rows[(target, *which)] for target in targets[at]} - {first})) if len(targets[at]) > 1 else ()
        for (at, *which), first in zip(keys, after.tolist(), strict=True)
    ]


def merged(units: Ints, also: Sequence[tuple[int, ...]]) -> Ints:
    """Return the units (the first row of each row's session), where a join makes one of those that it waits for."""
    for row, others in enumerate(also):
        for other in others:
            first, second = sorted((units.item(row), units.item(other)))
            if first != second:
                units = np.where(units == second, first, units)
    return units
