"""Throughput and latency as bars, with the interval over seeds: one small panel a quantity, each with its own axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from reports.axes import plain_numbers
from reports.columns import Column, Summaries, column_of
from reports.compare import Estimate, estimate, seeds
from reports.style import CARD, INK, MUTED, Picture, Style, draw, shorten
from reports.units import decimals, intervals, number
from simulator.metrics.slo import Slo
from simulator.metrics.table import METRICS

THROUGHPUT = ("output_throughput", "request_throughput", "request_goodput", "slo_attainment")
LATENCY = ("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p50_e2el_ms", "p99_e2el_ms")
# A latency this many times the shortest would leave of the others no bar to see: the panel is logarithmic then.
DWARFED = 20.0
TITLES = {
    "output_throughput": "Output throughput",
    "request_throughput": "Request throughput",
    "request_goodput": "Goodput",
    "slo_attainment": "Requests within the SLO",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One quantity: a value for each run, and its SLO (or none)."""

    title: str
    column: Column
    found: Mapping[str, Estimate]
    slo: float | None = None


def throughput_bars(summaries: Summaries, style: Mapping[str, Style]) -> Picture:
    """Work done per second, and the share of it that kept the SLO."""
    return _bars(
        "throughput",
        _panels(summaries, THROUGHPUT, None),
        2,
        style,
        "Longer is better. Throughput alone flatters a server that lets every request wait: goodput counts only those "
        "within the SLO. Equal throughputs mean that the load sets them, not the policy.",
        seeds(summaries),
    )


def latency_bars(summaries: Summaries, style: Mapping[str, Style], slo: Slo | None) -> Picture:
    """The median and the 99th percentile of TTFT, TPOT and end-to-end latency."""
    return _bars(
        "latency",
        _panels(summaries, LATENCY, slo),
        2,
        style,
        "Shorter is better; left the typical request, right the one in a hundred. Every panel has its own scale, "
        "logarithmic where it says so.",
        seeds(summaries),
    )


def _panels(summaries: Summaries, keys: Sequence[str], slo: Slo | None) -> list[Panel]:
    limits = slo or Slo()
    limit = {}
    if not any(own.limits for own in limits.classes.values()):  # bars are of all requests, and so must be their limit
        limit = {f"{p}_{name}_ms": each for name, each in limits.per_request().items() for p in ("p50", "p99")}
    limit |= limits.targets
    panels = []
    for key in keys:
        column = column_of(METRICS[key])
        found = {label: estimate(runs, key, column.scale) for label, runs in summaries.items()}
        if any(math.isfinite(each.mean) for each in found.values()):
            panels.append(Panel(TITLES.get(key, column.title), column, found, limit.get(key)))
    return panels


def _bars(
    name: str, panels: Sequence[Panel], across: int, style: Mapping[str, Style], caption: str, count: int
) -> Picture:
    down = max(-(-len(panels) // across), 1)
    labels = list(panels[0].found) if panels else [""]
    lines = max(_in_lines(label).count("\n") + 1 for label in labels)

    def paint(figure: Figure) -> str:
        grid = figure.subplots(down, across, squeeze=False)
        for index, axes in enumerate(grid.flat):
            if index < len(panels):
                _paint_panel(axes, panels[index], style, named=index % across == 0)
            else:
                axes.set_axis_off()
        if count > 1:
            return f"{caption} The whiskers are 95 % confidence intervals over {count} seeds."
        return f"{caption} One seed: no intervals."

    return draw(name, (10.0, down * (0.75 + max(0.3, 0.16 * lines) * len(labels)) + 0.1), paint)


def _paint_panel(axes: Axes, panel: Panel, style: Mapping[str, Style], *, named: bool) -> None:
    labels = list(panel.found)
    means = [panel.found[label].mean for label in labels]
    ends = [panel.found[label].ends for label in labels]
    top = max([*(high for _, high in ends if math.isfinite(high)), 1e-12])
    if panel.slo is not None and panel.slo <= 4.0 * top:
        axes.axvline(panel.slo, color=INK, linewidth=1.1, linestyle=(0, (2.0, 2.0)), zorder=1.5)
        top = max(top, panel.slo)
    for place, (label, mean, (low, high)) in enumerate(zip(labels, means, ends, strict=True)):
        if not math.isfinite(mean):
            axes.text(0.0, place, " no value", va="center", color=MUTED, fontsize=8.5)
            continue
        whisker = panel.found[label].low is not None
        axes.barh(place, mean, height=0.68, color=style[label].color, zorder=2)
        if whisker:
            sides = [[mean - low], [high - mean]]
            axes.errorbar(mean, place, xerr=sides, color=INK, linewidth=1.1, capsize=3.0, capthick=1.1, zorder=3)
        places = decimals([mean]) if panel.column.places is None else panel.column.places
        text = number(mean, places)
        if whisker:
            text += f" {intervals([(mean, low, high)], places)[0]}"
        axes.annotate(
            text,
            (high, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            bbox={"facecolor": CARD, "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
        )
    axes.set_yticks(range(len(labels)), [_in_lines(label) for label in labels] if named else [""] * len(labels))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    least = min([mean for mean in means if mean > 0], default=top)
    dwarfed = panel.column.better < 0 and top > DWARFED * least
    if dwarfed:
        _logarithmic(axes, least, top)
    else:
        axes.set_xlim(0.0, top * 1.36)
        plain_numbers(axes.xaxis, bins=5)
    limit = f", SLO {panel.slo:,g} dotted" if panel.slo is not None and panel.slo <= top else ""
    axes.set_title(f"{panel.title} ({panel.column.unit}{', log scale' if dwarfed else ''}){limit}")


def _in_lines(label: str, width: int = 26, most: int = 3) -> str:
    """A label beside its bar: parted after the policy and between settings, as a long line would squeeze the bars."""
    lines: list[str] = []
    for word in shorten(label, width * most).split(" "):
        if lines and len(lines[-1]) + len(word) < width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(shorten(line, width + 8) for line in lines[:most])


def _logarithmic(axes: Axes, least: float, top: float) -> None:
    """An axis on which the shortest bar can be seen beside the longest."""
    axes.set_xscale("log")
    axes.set_xlim(least / 3.0, top * (top / least) ** 0.4)
    axes.xaxis.set_major_locator(LogLocator(numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 10 else f"{x:g}"))
