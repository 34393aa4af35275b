"""The lines of a sweep over its load: which are drawn, and the colour, mark and dash of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.lines import Line2D

from reports.drawing.coincide import coinciding
from reports.drawing.style import CARD, DASHES, INK, ramp, shorten, styles
from reports.sweep.knee import knee
from reports.sweep.points import SweepAxis, SweepPoint, SweepResult, mean_of
from simulator.policies import Dash

MARKS = "osD^vPX*"
MOST_LINES = 10
LEAST = 3  # points of a line


@dataclass(frozen=True, slots=True)
class Drawn:
    """A line: its label, its points in the order of the load, and how it is drawn."""

    label: str
    points: Sequence[SweepPoint]
    tint: str
    mark: str
    dash: Dash


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines over the load of a sweep. `along` is the place of the load's axis, `hidden` how many are not drawn."""

    result: SweepResult
    along: int
    drawn: Sequence[Drawn]
    hidden: int

    @property
    def numbers(self) -> Sequence[float]:
        """The load at each place of its axis."""
        return self.result.axes[self.along].numbers

    @property
    def title(self) -> str:
        """The key in which the lines differ; empty where there is one line."""
        others = (axis.title for at, axis in enumerate(self.result.axes) if at != self.along)
        return ", ".join(others) if len(self.drawn) > 1 else ""

    def load(self, point: SweepPoint) -> float:
        """The load of a point."""
        return self.numbers[point.places[self.along]]

    def handles(self) -> list[Line2D]:
        """The entries of a legend, with those of the knee and of saturated points."""
        found = [
            Line2D([], [], color=each.tint, marker=each.mark, linestyle=each.dash, markersize=4.5,
                   label=shorten(each.label, 40))
            for each in self.drawn
        ]  # fmt: skip
        ring = Line2D([], [], color=INK, marker="o", markersize=9, markerfacecolor="none", linestyle="", label="knee")
        hollow = Line2D([], [], color=INK, marker="o", markersize=4.5, markerfacecolor=CARD, linestyle="")
        hollow.set_label("saturated")
        return [*found, ring, *([hollow] if any(each.is_saturated for each in self.result.done) else [])]

    def coinciding(self, keys: Sequence[str]) -> list[list[str]]:
        """Groups of lines that lie on each other in all of these metrics."""
        whole = [each for each in self.drawn if len(each.points) == len(self.numbers)]
        done = self.result.done
        known = {key: [mean for point in done if math.isfinite(mean := mean_of(point, key))] for key in keys}
        tops = {key: max(means, default=0.0) for key, means in known.items()}
        shares = {
            each.label: np.array([mean_of(point, key) / (tops[key] or 1.0) for key in keys for point in each.points])
            for each in whole
        }
        return coinciding(shares, 1.0)


def lines_over_load(result: SweepResult) -> Lines | None:
    """The lines of a sweep; None where no load varies or no line has three points."""
    along = load_axis(result)
    if along is None or max((len(points) for _, points in result.lines(along)), default=0) < LEAST:
        return None
    chosen = _lines(result, along)
    kinds = zip(chosen, _tints(result, along, chosen), _strokes(result, along, chosen), strict=True)
    drawn = [Drawn(label, points, tint, mark, dash) for (label, points), tint, (mark, dash) in kinds]
    return Lines(result, along, drawn, sum(1 for _ in result.lines(along)) - len(drawn))


def load_axis(result: SweepResult) -> int | None:
    """The place of the axis that says how much traffic comes; None without one of three values or more."""
    found = (at for at, axis in enumerate(result.axes) if axis.is_load and len(set(axis.numbers)) >= LEAST)
    return next(found, None)


def _lines(result: SweepResult, along: int) -> list[tuple[str, list[SweepPoint]]]:
    """The lines to draw: of many those that carry most at their knee."""
    found = list(result.lines(along))
    others = [axis for at, axis in enumerate(result.axes) if at != along]
    if len(others) == 1:  # the legend's title says which key it is
        (other,) = (at for at in range(len(result.axes)) if at != along)
        found = [(others[0].labels[points[0].places[other]], points) for _, points in found]
    if len(found) <= MOST_LINES:
        return found

    def carried(line: tuple[str, list[SweepPoint]]) -> float:
        of_line = knee(line[1])
        return -math.inf if of_line is None else of_line.point.estimate("request_throughput").mean

    kept = sorted(range(len(found)), key=lambda place: -carried(found[place]))[:MOST_LINES]
    return [found[place] for place in sorted(kept)]


def _tints(result: SweepResult, along: int, lines: Sequence[tuple[str, list[SweepPoint]]]) -> list[str]:
    """A colour for each line: by the other axis, or of several by the numbers that take the most values."""
    by = coloured_by(result, along)
    if by is None:
        return ramp(len(lines))
    of_axis = colours(result.axes[by])
    return [of_axis[points[0].places[by]] for _, points in lines]


def coloured_by(result: SweepResult, along: int) -> int | None:
    """The axis that colours follow: an ordered one where there is one; None where all points are on one line."""
    others = [at for at, axis in enumerate(result.axes) if at != along and len(axis.labels) > 1]
    return max(others, key=lambda at: (bool(result.axes[at].numbers), len(result.axes[at].labels)), default=None)


def colours(axis: SweepAxis) -> list[str]:
    """A colour for each place of an axis."""
    if not axis.numbers:
        named = styles([(label, label) for label in axis.labels])
        return [named[label].color for label in axis.labels]
    order = sorted(range(len(axis.numbers)), key=lambda place: axis.numbers[place])
    shares = ramp(len(order))
    return [shares[order.index(place)] for place in range(len(order))]


def _strokes(result: SweepResult, along: int, lines: Sequence[tuple[str, list[SweepPoint]]]) -> list[tuple[str, Dash]]:
    """A mark and a dash for each line, by what its colour does not tell; all marks differ where colour tells all."""
    by = coloured_by(result, along)
    rest = [tuple(place for at, place in enumerate(points[0].places) if at not in (along, by)) for _, points in lines]
    kinds = list(dict.fromkeys(rest))
    if len(kinds) < 2:
        return [(MARKS[place % len(MARKS)], "-") for place in range(len(lines))]
    order = [kinds.index(kind) for kind in rest]
    return [(MARKS[place % len(MARKS)], DASHES[place % len(DASHES)]) for place in order]
