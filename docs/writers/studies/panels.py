"""Lines over one quantity, in panels side by side: the picture of a study."""

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.picture import MUTED, Picture, draw, log_numbers, plain_numbers, shorten, styles

DECADE = 10.0
MARKS = "osD^vPX"
MARKED = 20  # points; more would touch each other
ACROSS = 3  # panels of a row
MOST_INSIDE = 6  # lines that a legend in each panel names; more have one legend for the picture
CLOSE = 0.12  # of the height: nearer, the end of a curve and a name would touch


class Line(Protocol):
    """Points by rising x; `dashed`: it is not measured; `steps`: a value holds until the next point."""

    @property
    def label(self) -> str: ...
    @property
    def points(self) -> Sequence[tuple[float, float]]: ...
    @property
    def dashed(self) -> bool: ...
    @property
    def steps(self) -> bool: ...


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
    """The panels, three in a row at most, four two by two. Equal labels have equal colours. ValueError without one."""
    if not panels:
        raise ValueError("a picture needs at least one panel")
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines if not line.dashed))
    style = styles([(label, label) for label in labels])
    inside = len(labels) <= MOST_INSIDE or len({tuple(line.label for line in panel.lines) for panel in panels}) > 1
    across = len(panels) if len(panels) <= ACROSS else ceil(sqrt(len(panels)))
    rows = ceil(len(panels) / across)

    def paint(figure: Figure) -> str:
        for axes, panel in zip(figure.subplots(rows, across, squeeze=False).flat, panels, strict=False):
            _scale(axes, panel)
            for line in panel.lines:
                if line.dashed:
                    _dashed(axes, line, [each for each in panel.lines if not each.dashed])
                    continue
                mark = MARKS[labels.index(line.label) % len(MARKS)] if len(line.points) <= MARKED else ""
                x, y = zip(*line.points, strict=True)
                how = "steps-post" if line.steps else "default"
                color = style[line.label].color
                axes.plot(x, y, color=color, marker=mark, markersize=4.5, drawstyle=how, label=shorten(line.label))
            axes.set_title(panel.title)
            axes.set_xlabel(panel.x_label)
            axes.set_ylabel(panel.y_label)
            if inside:
                axes.legend(loc="best")
        if not inside:
            figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=across + 3)
        for axes in figure.axes[len(panels) :]:
            axes.remove()
        return "; ".join(panel.title for panel in panels)

    return draw(name, (5.2 * across, 3.8 * rows), paint)


def _dashed(axes: Axes, line: Line, curves: Sequence[Line]) -> None:
    """A straight limit has its name beside it, so that two limits differ; a curve says it in the legend.

    The name of a level one stands at its right end, or at its left where curves end near it.
    """
    x, y = zip(*line.points, strict=True)
    level, upright = len({*y}) == 1, len({*x}) == 1
    label = shorten(line.label)
    in_legend = "_nolegend_" if level or upright else label
    axes.plot(x, y, color=MUTED, linestyle=(0, (2.0, 2.0)), linewidth=1.2, label=in_legend)
    if level or upright:
        heights = [y for curve in curves for _, y in curve.points] or [0.0]
        near = CLOSE * (max(heights) - min(heights))
        is_right = level and not any(abs(curve.points[-1][1] - y[-1]) < near for curve in curves)
        axes.annotate(
            label,
            (x[-1], y[-1]) if is_right else (x[0], y[0]),
            xytext=(0, 3) if level else (4, 3),
            textcoords="offset points",
            ha="right" if is_right else "left",
            va="bottom",
            color=MUTED,
            fontsize="small",
        )


def _scale(axes: Axes, panel: Panel) -> None:
    points = [point for line in panel.lines for point in line.points]
    for axis, values in ((axes.xaxis, [x for x, _ in points]), (axes.yaxis, [y for _, y in points])):
        low, high = min(values), max(values)
        if low > 0 and high / low > DECADE:
            log_numbers(axis, high / low)
        else:
            plain_numbers(axis)
