"""Lines over one quantity, in panels side by side: the picture of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.axes import log_numbers, plain_numbers
from reports.style import MUTED, Picture, draw, shorten, styles

DECADE = 10.0
MARKS = "osD^vPX"


class Line(Protocol):
    """Points by rising x; `dashed` is for what is not measured."""

    @property
    def label(self) -> str: ...
    @property
    def points(self) -> Sequence[tuple[float, float]]: ...
    @property
    def dashed(self) -> bool: ...


class Panel(Protocol):
    """One pair of axes; both are logarithmic where the values are positive and span more than a decade."""

    @property
    def title(self) -> str: ...
    @property
    def x_label(self) -> str: ...
    @property
    def y_label(self) -> str: ...
    @property
    def lines(self) -> Sequence[Line]: ...


def panels_picture(name: str, panels: Sequence[Panel]) -> Picture:
    """The panels side by side. A line of the same label has the same colour in all of them. ValueError without one."""
    if not panels:
        raise ValueError("a picture needs at least one panel")
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines if not line.dashed))
    style = styles([(label, label) for label in labels])

    def paint(figure: Figure) -> str:
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for line in panel.lines:
                x, y = zip(*line.points, strict=True)
                if line.dashed:
                    axes.plot(x, y, color=MUTED, linestyle=(0, (2.0, 2.0)), linewidth=1.2, label=shorten(line.label))
                    continue
                mark = MARKS[labels.index(line.label) % len(MARKS)]
                axes.plot(x, y, color=style[line.label].color, marker=mark, markersize=4.5, label=shorten(line.label))
            _scale(axes, panel)
            axes.set_title(panel.title)
            axes.set_xlabel(panel.x_label)
            axes.set_ylabel(panel.y_label)
            axes.legend(loc="best")
        return "; ".join(panel.title for panel in panels)

    return draw(name, (5.2 * len(panels), 3.8), paint)


def _scale(axes: Axes, panel: Panel) -> None:
    points = [point for line in panel.lines for point in line.points]
    for axis, values in ((axes.xaxis, [x for x, _ in points]), (axes.yaxis, [y for _, y in points])):
        low, high = min(values), max(values)
        if low > 0 and high / low > DECADE:
            log_numbers(axis, high / low)
        else:
            plain_numbers(axis)
