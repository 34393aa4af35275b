"""Values of a picture that readers can point at: where each stands, and what it says."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

POINTS_PER_INCH = 72.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A value at a place of `axes`, in its data; `of` is the number of the curve, or of the row, that it belongs to."""

    axes: Axes
    x: float
    y: float
    words: str
    of: int = 0


@dataclass(frozen=True, slots=True)
class Spot:
    """A mark on the finished picture: in points from its upper left corner, as its SVG counts."""

    x: float
    y: float
    words: str
    of: int


@dataclass(frozen=True, slots=True)
class Series:
    """A curve of a picture that readers can hide: what its artists are drawn as `in_series` of its number."""

    label: str
    color: str


@dataclass(frozen=True, slots=True)
class Painted:
    """A painted figure: its caption (plain text), its marks, and its series, if any."""

    caption: str
    marks: Sequence[Mark] = ()
    series: Sequence[Series] = ()


@contextmanager
def in_series(axes: Axes, number: int) -> Iterator[None]:
    """Whatever is drawn on `axes` meanwhile belongs to the series of this number, and goes with it."""
    before = set(axes.get_children())
    yield
    panel = figure.axes.index(axes) if (figure := axes.figure) is not None else 0
    for place, artist in enumerate(axes.get_children()):
        if artist not in before and artist.get_gid() is None:
            artist.set_gid(f"run-{number}-{panel}-{place}")  # an id is one element's alone


def spots(figure: Figure, marks: Sequence[Mark]) -> tuple[Spot, ...]:
    """The places of the marks in a figure that is laid out; marks outside of their axes are left out."""
    scale, height = POINTS_PER_INCH / figure.dpi, figure.get_figheight() * POINTS_PER_INCH
    found = []
    for mark in marks:
        x, y = mark.axes.transData.transform((mark.x, mark.y)).tolist()
        if math.isfinite(x) and math.isfinite(y) and mark.axes.bbox.padded(1.0).contains(x, y):
            found.append(Spot(round(scale * x, 1), round(height - scale * y, 1), mark.words, mark.of))
    return tuple(found)


def some(count: int, most: int) -> range:
    """The places of at most `most` of `count` values, evenly spaced."""
    return range(0, count, max(1, -(-count // most)))
