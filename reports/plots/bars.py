"""Throughput and latency, with the interval over seeds: one small panel a quantity, each with its own axis.

Bars where an axis begins at zero, dots where one is logarithmic: a bar's length says nothing without a zero.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reports.picture import (
    CARD,
    INK,
    MUTED,
    DrawnRuns,
    Picture,
    Plot,
    Style,
    draw,
    equal,
    grid_of,
    log_times,
    plain_numbers,
    plain_times,
    said,
    shorten,
    time_text,
)
from reports.units import intervals, number, time_unit
from reports.verdict.shown_metrics import Column, Estimate, Summaries, column_of, estimate, seeds
from simulator.metrics.latency import Slo
from simulator.metrics.summary import METRICS

THROUGHPUT = ("output_throughput", "request_throughput", "request_goodput", "slo_attainment")
LATENCY = ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p50_e2el_ms", "p99_e2el_ms")
# A latency this many times the shortest would leave of the others no bar to see: the picture is logarithmic then.
DWARFED = 20.0
_NO_INTERVALS = "One seed: no intervals."
TITLES = {
    "output_throughput": "Output throughput",
    "request_throughput": "Request throughput",
    "request_goodput": "Goodput",
    "slo_attainment": "Requests within the SLO",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity: a value for each run, its SLO (or none), and what no scheduler can do better (or none)."""

    title: str
    column: Column
    found: Mapping[str, Estimate]
    slo: float | None = None
    bound: float | None = None

    @property
    def is_time(self) -> bool:
        """Return whether it is a latency, which says its own unit."""
        return self.column.unit == "ms"

    @property
    def means(self) -> list[float]:
        return [each.mean for each in self.found.values() if math.isfinite(each.mean)]

    @property
    def dwarfed(self) -> bool:
        """Return whether one run would leave of another no bar to see."""
        some = [mean for mean in self.means if mean > 0]
        ends = [each.ends[1] for each in self.found.values() if math.isfinite(each.ends[1])]
        return self.column.better < 0 and bool(some) and max(ends) > DWARFED * min(some)


def throughput_bars(summaries: Summaries, style: Mapping[str, Style]) -> Picture:
    """Work done per second, and the share of it that kept the SLO."""
    return _panelled(
        "throughput",
        _panels(summaries, THROUGHPUT, None),
        style,
        "Longer is better. Throughput alone flatters a server that lets every request wait: goodput counts only those "
        "within the SLO. Equal throughputs mean that the load sets them, not the policy.",
        seeds(summaries),
    )


def latency_bars(summaries: Summaries, style: Mapping[str, Style], slo: Slo | None) -> Picture:
    """The median and the 99th percentile of TTFT, TPOT and end-to-end latency."""
    panels = _panels(summaries, LATENCY, slo)
    dots = any(panel.dwarfed for panel in panels)
    how = (
        "Dots stand on logarithmic axes, where a bar would have no zero to start from" if dots else "Bars start at zero"
    )
    return _panelled(
        "latency",
        panels,
        style,
        f"Further left is better; left the typical request, right the one in a hundred. {how}. Every panel has its own "
        "scale; the dotted line is the SLO.",
        seeds(summaries),
        dots=dots,
    )


def _panels(summaries: Summaries, keys: Sequence[str], slo: Slo | None) -> list[Panel]:
    limits = slo or Slo()
    limit = {}
    if not any(own.limits for own in limits.classes.values()):  # of all requests, and so must be their limit
        limit = {f"{p}_{name}_ms": each for name, each in limits.per_request().items() for p in ("p50", "p99")}
    limit |= limits.targets
    panels = []
    for key in keys:
        column = column_of(METRICS[key])
        found = {label: estimate(runs, key, column.scale) for label, runs in summaries.items()}
        if any(math.isfinite(each.mean) for each in found.values()):
            bound = _bound(summaries, key)
            shown = None if bound is None else bound * column.scale
            panels.append(Panel(TITLES.get(key, column.title), column, found, limit.get(key), shown))
    return panels


def _bound(summaries: Summaries, key: str) -> float | None:
    """The mean bound of a metric over the seeds of the first run that has one; None without."""
    for runs in summaries.values():
        found: list[object] = [each.get("bound") for each in runs]
        values = [float(bounds[key]) for bounds in found if isinstance(bounds, Mapping) and key in bounds]
        if values:
            return sum(values) / len(values)
    return None


def _panelled(
    name: str, panels: Sequence[Panel], style: Mapping[str, Style], caption: str, count: int, *, dots: bool = False
) -> Picture:
    across = 2
    down = max(-(-len(panels) // across), 1)
    labels = list(panels[0].found) if panels else [""]
    lines = max(_in_lines(label).count("\n") + 1 for label in labels)

    def paint(figure: Figure) -> str:
        for index, (axes, panel) in enumerate(zip(grid_of(figure, len(panels), across), panels, strict=True)):
            _paint_panel(axes, panel, style, named=index % across == 0, dots=dots)
        found = panels[0].found if panels else ()
        same = said(equal({label: tuple(panel.found[label].mean for panel in panels) for label in found}))
        bounds = f"The whiskers are 95 % confidence intervals over {count} seeds." if count > 1 else _NO_INTERVALS
        best = (
            " The dashed line: no scheduler can do better." if any(panel.bound is not None for panel in panels) else ""
        )
        return f"{caption}{best} {bounds}{same}"

    return draw(name, (10.0, down * (0.75 + max(0.3, 0.16 * lines) * len(labels)) + 0.1), paint)


def _paint_panel(axes: Axes, panel: Panel, style: Mapping[str, Style], *, named: bool, dots: bool) -> None:
    labels = list(panel.found)
    ends = [panel.found[label].ends for label in labels]
    top = max([*(high for _, high in ends if math.isfinite(high)), 1e-12])
    for place, label in enumerate(labels):
        _paint_run(axes, panel, place, style[label].color, dots=dots)
    axes.set_yticks(range(len(labels)), [_in_lines(label) for label in labels] if named else [""] * len(labels))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.grid(visible=dots, axis="y")
    bracket = f" ({panel.column.unit})" if not panel.is_time else " (log scale)" if panel.dwarfed else ""
    axes.set_title(f"{panel.title}{bracket}")
    shown = panel.slo if panel.slo is not None and panel.slo <= (40.0 if panel.dwarfed else 4.0) * top else None
    if panel.dwarfed:
        values = [value for value in (*panel.means, shown or 0.0, panel.bound or 0.0) if value > 0]
        low, high = min(values), max([*values, top])
        log_times(axes.xaxis, low, high, most=5)
        axes.set_xlim(low / 1.8, high * (high / low) ** 0.4)
    else:
        reach = max(top, shown or 0.0, min(panel.bound or 0.0, 2.0 * top))
        axes.set_xlim(0.0, reach * 1.36)
        if panel.is_time:
            plain_times(axes.xaxis, reach, bins=5)
        else:
            plain_numbers(axes.xaxis, bins=5)
    if shown is not None:
        axes.axvline(shown, color=INK, linewidth=1.1, linestyle=(0, (2.0, 2.0)), zorder=6)
    if panel.bound is not None:
        axes.axvline(panel.bound, color=INK, linewidth=1.1, linestyle=(0, (6.0, 3.0)), zorder=6, gid="bound")
    if panel.slo is not None:
        where = "" if shown is not None else ", far to the right"
        axes.set_title(f"SLO {time_text(panel.slo)}{where}", loc="right", fontsize=8.5, fontweight="normal")


def _paint_run(axes: Axes, panel: Panel, place: int, color: str, *, dots: bool) -> None:
    """A bar or a dot, its whisker and its value."""
    found = list(panel.found.values())[place]
    if not math.isfinite(found.mean):
        inside = axes.get_yaxis_transform()
        axes.text(0.01, place, " no value", va="center", color=MUTED, fontsize=8.5, transform=inside)
        return
    (low, high), gid = found.ends, f"run-{place}-{panel.column.key}"
    if dots:
        axes.plot([found.mean], [place], "o", color=color, markersize=7.0, zorder=4, gid=gid)
    else:
        (bar,) = axes.barh(place, found.mean, height=0.68, color=color, zorder=2)
        bar.set_gid(gid)
    if found.low is not None:
        sides = [[found.mean - low], [high - found.mean]]
        axes.errorbar(found.mean, place, xerr=sides, color=INK, linewidth=1.1, capsize=3.0, capthick=1.1, zorder=5)
    axes.annotate(
        _value(panel, found),
        (high, place),
        xytext=(7 if dots else 4, 0),
        textcoords="offset points",
        va="center",
        fontsize=8.5,
        zorder=7,  # a figure is read through the dotted line
        bbox={"facecolor": CARD, "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
    )


def _value(panel: Panel, found: Estimate) -> str:
    """The mean and its interval, a latency in its own unit."""
    unit = time_unit(found.mean) if panel.is_time else None
    scale = 1.0 if unit is None else unit.milliseconds
    mean, low, high = (None if end is None else end / scale for end in (found.mean, found.low, found.high))
    assert mean is not None
    places = panel.column.decimals([mean])
    interval = "" if low is None else f" {intervals([(mean, low, high)], places)[0]}"
    return f"{number(mean, places)}{interval}" + ("" if unit is None else f" {unit.unit}")


def _in_lines(label: str, width: int = 26, most: int = 3) -> str:
    """A label beside its bar: parted after the policy and between settings, as a long line would squeeze the bars."""
    lines: list[str] = []
    for word in shorten(label, width * most).split(" "):
        if lines and len(lines[-1]) + len(word) < width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(shorten(line, width + 8) for line in lines[:most])


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """Throughput and latency as bars."""
    yield Plot(90, "throughput", "Throughput and latency", lambda: throughput_bars(drawn.summaries, drawn.style))
    yield Plot(100, "latency", "Throughput and latency", lambda: latency_bars(drawn.summaries, drawn.style, drawn.slo))
