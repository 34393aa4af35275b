"""Seconds of many stretches of time during which something held, from rows, in one sweep."""

import numpy as np

from simulator.metrics.window import Bools
from simulator.results.records import Floats, Ints, Records


class Timeline:
    """The rows of all replicas on one axis: replica after replica, so that one interpolation answers for all."""

    def __init__(self, records: Records, begin_s: float, end_s: float) -> None:
        rows = records.rows
        self._begin_s, self._length_s = begin_s, end_s - begin_s + 1.0
        self._rows_s = rows.end_s - rows.start_s
        places = np.empty(2 * len(rows.start_s))
        places[0::2] = self.place(rows.replica, rows.start_s)
        places[1::2] = self.place(rows.replica, rows.end_s)
        self._places = places

    def place(self, replica: Ints, time_s: Floats) -> Floats:
        """Return the places of these moments of these replicas on the axis."""
        return np.asarray(replica * self._length_s + np.clip(time_s - self._begin_s, 0.0, self._length_s))

    def seconds(self, weight: Floats | Bools, replica: Ints, from_s: Floats, to_s: Floats) -> Floats:
        """Return, for every stretch, the time of its replica's rows in it, each row's times its weight (0 to 1)."""
        if not len(self._places):
            return np.zeros(len(from_s))
        total = np.zeros(len(self._places))
        done = np.cumsum(weight * self._rows_s)
        total[1::2] = done
        total[2::2] = done[:-1]
        at = np.maximum(replica, 0)
        to = np.interp(self.place(at, to_s), self._places, total)
        return np.asarray(np.maximum(to - np.interp(self.place(at, from_s), self._places, total), 0.0))


def covered(starts: Floats, ends: Floats, from_s: Floats, to_s: Floats) -> Floats:
    """Return, for every stretch from `from_s` to `to_s`, its time inside any of the intervals, which may overlap."""
    keep = ends > starts
    if not keep.any():
        return np.zeros(len(from_s))
    times = np.concatenate((starts[keep], ends[keep]))
    steps = np.concatenate((np.ones(keep.sum()), -np.ones(keep.sum())))
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(steps[order])
    inside = np.concatenate(([0.0], np.cumsum(np.diff(times) * (depth[:-1] > 0))))
    found = np.interp(to_s, times, inside) - np.interp(from_s, times, inside)
    return np.asarray(np.maximum(found, 0.0))
