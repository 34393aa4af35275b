"""Latency CDFs: the share of requests (or of token gaps) below a latency, one curve a run, with the SLO line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.picture import (
    INK,
    MUTED,
    TICKS,
    DrawnRuns,
    Picture,
    Plot,
    Style,
    coinciding,
    draw,
    height,
    highest,
    latency_axis,
    said,
    shorten,
    slo_line,
    tail_axis,
    time_text,
)
from reports.units import latency
from reports.verdict.shown_metrics import classes_of
from simulator.metrics.latency import Slo, finished, itl, limited_requests, request_latencies
from simulator.metrics.window import Bools, measured_window
from simulator.results.records import Floats, Records

# Percentiles drawn: even steps, and finer ones where the tail is.
GRID = np.unique(
    np.concatenate((np.linspace(0, 98, 393), np.linspace(98, 99.9, 96), np.linspace(99.9, 100, 41))).round(6)
)
COARSE = np.array([0, 1, 2, 5, *range(10, 90, 5), 90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9, 99.99, 100.0])
LINE = 76  # about so many characters of a legend fit the picture
SCALE = "The axis stretches the tail: 99 to 99.9 % is as high as 90 to 99 %."
MANY_GAPS = 1 << 18  # so many entries of token gaps are drawn from fewer percentiles


@dataclass(frozen=True, slots=True)
class Quantity:
    """A latency that has a picture: file name, title, what one sample is, and its SLO.

    The limit is that of all requests, or of the only class that has one (`of_class`).
    """

    name: str
    title: str
    samples: str
    slo_ms: float | None
    top: float = 99.9  # the highest percentile of the axis
    of_class: str | None = None


def quantities(slo: Slo | None) -> tuple[Quantity, ...]:
    """The four latencies, in the order of the report."""

    def of_requests(latency: str, title: str) -> Quantity:
        limit_ms, of_class = _limit(slo or Slo(), latency)
        return Quantity(f"{latency}_cdf", title, "finished requests", limit_ms, of_class=of_class)

    return (
        of_requests("ttft", "Time to first token (TTFT)"),
        of_requests("tpot", "Time per output token (TPOT)"),
        Quantity("itl_cdf", "Gap between tokens (ITL)", "token gaps", None, top=99.99),
        of_requests("e2el", "End-to-end latency (E2E)"),
    )


def _limit(slo: Slo, latency: str) -> tuple[float | None, str | None]:
    """The limit to draw, and the class whose own it is: the default one, or else that of the only class with one."""
    if (limit_ms := slo.per_request().get(latency)) is not None:
        return limit_ms, None
    own = [(limit_ms, name) for name, each in slo.classes.items() if (limit_ms := each.per_request().get(latency))]
    return own[0] if len(own) == 1 else (None, None)


@dataclass(frozen=True, slots=True)
class CdfCurve:
    """One run's latency in milliseconds at the percentiles `GRID`; empty where there is no sample."""

    label: str
    at_ms: Floats
    within_slo: float | None = None  # share of the samples that the SLO limits at or below it
    limited: str = ""  # the classes that it limits, where it does not limit all
    samples: int = 1_000_000  # behind it: no percentile is drawn that has no sample beyond it

    def percentile(self, q: float) -> float:
        return float(np.interp(q, GRID, self.at_ms)) if len(self.at_ms) else float("nan")


def curves(
    label: str, records: Records, slo: Slo | None, *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> dict[str, CdfCurve]:
    """A run's curves by the names of `quantities`: over the finished of the measured requests, as in the summary."""
    window = measured_window(records, warmup_s, cooldown_s)
    done = finished(records) & window.measured
    each = request_latencies(records)
    took_ms = {"ttft_cdf": each.ttft_ms, "tpot_cdf": each.tpot_ms, "e2el_cdf": each.e2el_ms}
    found = {}
    for quantity in quantities(slo):
        if quantity.name in took_ms:
            those = _limited(records, slo or Slo(), quantity.of_class)
            names = classes_of(records, those)
            found[quantity.name] = _curve(label, took_ms[quantity.name][done], quantity.slo_ms, those[done], names)
    many = len(records.gaps.count) + records.num_steps > MANY_GAPS
    percents = COARSE if many else GRID
    gaps = itl(records, percents.tolist(), window)
    at_ms = np.zeros(0) if gaps is None else np.interp(GRID, percents, np.array(gaps.percentiles) * 1e3)
    return found | {"itl_cdf": CdfCurve(label, at_ms)}


def _limited(records: Records, slo: Slo, of_class: str | None) -> Bools:
    """The requests that a limit is for: those of `of_class`, or of all classes without limits of their own."""
    groups = {group.class_name: group.requests for group in limited_requests(records, slo)}
    return groups.get(of_class, np.zeros(len(records.requests.row), dtype=bool))


def _curve(label: str, latency_ms: Floats, slo_ms: float | None, those: Bools, names: str) -> CdfCurve:
    known = ~np.isnan(latency_ms)
    if not known.any():
        return CdfCurve(label, np.zeros(0))
    at_ms, limited_ms = np.percentile(latency_ms[known], GRID), latency_ms[known & those]
    if slo_ms is None or not len(limited_ms):
        return CdfCurve(label, at_ms, samples=int(known.sum()))
    return CdfCurve(label, at_ms, float((limited_ms <= slo_ms).mean()), names, int(known.sum()))


def cdf(quantity: Quantity, curves: Sequence[CdfCurve], style: Mapping[str, Style]) -> Picture:
    """The picture of one quantity, a curve for each run."""
    return draw(quantity.name, (5.6, 3.6 + 0.2 * len(curves)), lambda figure: _paint(figure, quantity, curves, style))


def top_percent(quantity: Quantity, drawn: Sequence[CdfCurve]) -> float:
    """The end of the percentile axis: the last of its labels that the largest run has samples for, p99 at least."""
    most = max((highest(curve.samples) for curve in drawn), default=0.0)
    return max([99.0, *(tick for tick in TICKS if tick <= min(most, quantity.top))])


def _shown(curve: CdfCurve, top: float) -> tuple[Floats, Floats]:
    """The percentiles of a curve that are drawn, and its latencies there."""
    some = min(top, highest(curve.samples)) + 1e-9 >= GRID
    return GRID[some], curve.at_ms[some]


def _paint(figure: Figure, quantity: Quantity, curves: Sequence[CdfCurve], style: Mapping[str, Style]) -> str:
    axes, slo_ms = figure.subplots(), quantity.slo_ms
    drawn = [curve for curve in curves if len(curve.at_ms)]
    top = top_percent(quantity, drawn)
    for place, curve in enumerate(curves):
        if not len(curve.at_ms):
            continue
        look = style[curve.label]
        percents, at_ms = _shown(curve, top)
        solid = look.dash == "-"  # below the others and wider, so that it hides none
        width, zorder = (2.6, 3) if solid else (1.8, 4)
        (line,) = axes.plot(at_ms, height(percents), color=look.color, linestyle=look.dash, linewidth=width)
        line.set(zorder=zorder, gid=f"run-{place}")
    ends = [float(end) for curve in drawn if len(at_ms := _shown(curve, top)[1]) for end in at_ms[[0, -1]]]
    ends = [*(ends or (0.0, 1.0)), *([] if slo_ms is None else [slo_ms])]
    latency_axis(axes.xaxis, min(ends), max(ends))
    tail_axis(axes.yaxis, top)
    axes.set_ylabel(f"share of {quantity.samples} (%)")
    axes.set_xlabel(quantity.title.partition(" (")[0].lower())
    axes.set_title(quantity.title, pad=18.0)
    limited = next((shorten(curve.limited, 40) for curve in drawn if curve.limited), "")
    if slo_ms is not None:
        slo_line(axes, slo_ms, limited)
    if not drawn:
        axes.text(0.5, 0.5, "no samples", transform=axes.transAxes, ha="center", va="center", color=MUTED)
    _legend(figure, curves, style, slo_ms)
    text = f"Share of {quantity.samples} at or below a latency: the further left, the better. " + SCALE
    text += said(coinciding(*_as_drawn(axes, {curve.label: _shown(curve, top)[1] for curve in drawn})))
    if slo_ms is not None and limited:
        text += f" The curves are of all requests, the dotted line and the shares within it of {limited}."
    elif slo_ms is not None:
        text += " Where a curve meets the dotted line, read off the share of all requests within this limit."
    return text


def _as_drawn(axes: Axes, at_ms: Mapping[str, Floats]) -> tuple[dict[str, Floats], float]:
    """The curves as they lie along the axis, and its length: logarithms where it is logarithmic."""
    left, right = axes.get_xlim()
    if axes.get_xscale() == "log":
        return {label: np.log(np.maximum(each, left)) for label, each in at_ms.items()}, float(np.log(right / left))
    return dict(at_ms), right - left


def _legend(figure: Figure, curves: Sequence[CdfCurve], style: Mapping[str, Style], slo_ms: float | None) -> None:
    handles, texts = [], []
    for curve in curves:
        handles.append(Line2D([], [], color=style[curve.label].color, linestyle=style[curve.label].dash))
        text = f":  p50 {latency(curve.percentile(50))}, p99 {latency(curve.percentile(99))}"
        if not len(curve.at_ms):
            text = ":  no samples"
        elif slo_ms is not None and curve.within_slo is not None:
            whose = f"of {shorten(curve.limited, 24)} in SLO" if curve.limited else f"within {time_text(slo_ms)}"
            text += f", {100 * curve.within_slo:.1f} % {whose}"
        text = shorten(curve.label, min(44, LINE - len(text))) + text
        texts.append(text)
    figure.legend(handles, texts, loc="outside lower left", ncols=1, labelcolor=INK, handlelength=3.2, borderpad=0.2)


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """A plot of each latency."""

    @cache
    def lines() -> list[dict[str, CdfCurve]]:
        return all_curves(drawn)

    def painted(quantity: Quantity) -> Picture:
        return cdf(quantity, [each[quantity.name] for each in lines()], drawn.style)

    for each in quantities(drawn.slo):
        yield Plot(30, each.name, "Latency", partial(painted, each), small=True)


def all_curves(drawn: DrawnRuns) -> list[dict[str, CdfCurve]]:
    """Each run's latency curves by their names."""
    return [
        curves(run.label, run.records, drawn.slo, warmup_s=run.warmup_s, cooldown_s=run.cooldown_s)
        for run in drawn.runs
    ]
