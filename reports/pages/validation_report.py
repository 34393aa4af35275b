"""A simulation beside a real server's log: errors, curves over each other, request by request, and over time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from reports.html import pieces as html
from reports.html import pieces as svg
from reports.html.pieces import BUCKETS, Json, curves_data, timeline_data
from reports.picture import INK, LOG_FROM, MUTED, Mark, Painted, Picture, Style, draw, latency_axis, plain_numbers, some
from reports.plots.cdf import GRID, SCALE, CdfCurve, Quantity, cdf
from reports.plots.timeline import BUCKETS as PICTURE_BUCKETS
from reports.plots.timeline import Strip, band, draw_strips
from reports.tables.details import TableRows
from reports.units import decimals, latency, number, short
from simulator.metrics.metric import percent
from simulator.metrics.series import StepFunction
from simulator.results.records import Floats

MEASURED, SIMULATED = "measured", "simulated"
STYLE = {MEASURED: Style(INK, "-"), SIMULATED: Style("#d55e00", (0, (5.0, 1.8)))}
_SIDES = [{"label": label, "color": svg.themed(look.color)} for label, look in STYLE.items()]
STATISTICS = ("mean", "p50", "p90", "p99")
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
QUANTITIES = {
    "ttft": Quantity("ttft_cdf", "Time to first token (TTFT)", "requests", None),
    "tpot": Quantity("tpot_cdf", "Time per output token (TPOT)", "requests", None),
    "e2e": Quantity("e2el_cdf", "End-to-end latency (E2E)", "requests", None),
}
CURVES = (
    f"Share of requests at or below a latency. {SCALE} One curve beside the other is a bias, another slope another "
    "spread."
)
MOST_MARKS = 1500
GOOD, FAIR = 0.05, 0.10  # bars within the first are drawn light, beyond the second dark


@dataclass(frozen=True, slots=True)
class Facing:
    """Both sides of a comparison. Latencies in ms by metric (`ttft`, `tpot`, `e2e`), one sample a request, no NaN.

    `errors` are the signed fractions behind the score by name, in order. `paired_ms` are the end-to-end latencies of
    matched requests, measured and simulated; None where they could not be matched. `over_time` holds functions of time
    by the title of their panel, for each side. Makespans in seconds.
    """

    title: str
    subtitle: str
    measured_ms: Mapping[str, Floats]
    simulated_ms: Mapping[str, Floats]
    errors: Mapping[str, float]
    makespan_s: tuple[float, float]
    throughput: Mapping[str, float]
    paired_ms: tuple[Floats, Floats] | None
    over_time: Mapping[str, tuple[StepFunction, StepFunction]]
    parts: TableRows | None
    words: Sequence[str]
    notes: Sequence[str]
    scenario_yaml: str


def error_table(facing: Facing) -> TableRows:
    """One line a metric and statistic: measured, simulated, and the signed error."""
    body = []
    for metric, title in TITLES.items():
        if metric not in facing.measured_ms:
            continue
        two = (side[metric] for side in (facing.measured_ms, facing.simulated_ms))
        sides = [[float(side.mean()), *np.percentile(side, (50, 90, 99)).tolist()] for side in two]
        places = decimals([*sides[0], *sides[1]], 1)
        for name, *values in zip(STATISTICS, *sides, strict=True):
            texts = [number(value, places) for value in values]
            body.append((f"{title} {name}", "ms", *texts, percent(facing.errors[f"{metric} {name}"], 1, signed=True)))
    if "makespan" in facing.errors:
        texts = [number(value, 1) for value in facing.makespan_s]
        body.append(("makespan", "s", *texts, percent(facing.errors["makespan"], 1, signed=True)))
    for name, error in facing.throughput.items():
        if math.isfinite(error):
            body.append((f"{name} throughput", "", "", "", percent(error, 1, signed=True)))
    return TableRows(("", "", MEASURED, SIMULATED, "error"), tuple(body), 2)


def signed(value: float) -> str:
    """A whole number with its sign; 0 has none."""
    text = f"{value:+,.0f}"
    return "0" if text in ("+0", "-0") else text


def write_validation(folder: Path, facing: Facing) -> Path:
    """Write the pictures and report.html into `folder`; return the page's path. Equal input gives equal bytes."""
    pictures = draw_validation(facing)
    curves = [pictures[quantity.name] for quantity in QUANTITIES.values() if quantity.name in pictures]
    curves += [pictures["requests"]] if "requests" in pictures else []
    zooms = html.explorer("timeline", html.title_of("timeline"))
    over = [html.figure(pictures["timeline"], zooms)] if "timeline" in pictures else []
    titles = {QUANTITIES[metric].name: TITLES[metric] for metric in _known(facing)}
    sections = [
        html.section("Verdict", html.paragraphs(list(facing.words), "verdict"), html.table(facing.parts)),
        html.section("Errors", html.figure(pictures["errors"]), html.table(error_table(facing))),
        html.section("Latency percentiles", html.latencies(_SIDES, titles, _lines(facing))),
        html.section("Latency", html.pair(curves)),
        html.section("Over time", *over),
        html.section("Notes", html.paragraphs(list(facing.notes), "notes")),
        html.section("Scenario", html.details("Resolved scenario", facing.scenario_yaml)),
    ]
    return html.write_page(folder, facing.title, facing.subtitle, sections, pictures.values(), _data(facing))


def draw_validation(facing: Facing) -> dict[str, Picture]:
    """Every picture by its name, in the order of the page."""
    found = [error_bars(facing.errors)]
    for metric, quantity in QUANTITIES.items():
        if metric in facing.measured_ms:
            lines = [_curve(MEASURED, facing.measured_ms[metric]), _curve(SIMULATED, facing.simulated_ms[metric])]
            found.append(replace(cdf(quantity, lines, STYLE), caption=CURVES))
    if facing.paired_ms is not None:
        found.append(pairs(*facing.paired_ms))
    if facing.over_time:
        panels, end_s = _panels(facing.over_time)
        picture = draw_strips("timeline", panels, (MEASURED, SIMULATED), STYLE, end_s)
        caption = "The batch and the queue of both over time. Where the queues part, look at what the batch did before."
        found.append(replace(picture, caption=caption))
    return {picture.name: picture for picture in found}


def error_bars(errors: Mapping[str, float]) -> Picture:
    """The errors behind the score as bars to either side of zero."""

    def paint(figure: Figure) -> Painted:
        axes = figure.subplots()
        parts = (name.partition(" ") for name in errors)
        names = [f"{TITLES.get(metric, metric)} {statistic}".strip() for metric, _, statistic in parts]
        values = [100.0 * error for error in errors.values()]
        reach = max([*map(abs, values), 1.0])
        for place, value in enumerate(values):
            sign, side = (1, "left") if value >= 0 else (-1, "right")
            size = abs(value) / 100.0
            shade = "#9ecae1" if size <= GOOD else "#0072b2" if size <= FAIR else "#d55e00"
            axes.barh(place, value, height=0.66, color=shade, zorder=2)
            text = f"{value:+.1f}" if round(value, 1) else "0.0"
            axes.annotate(text, (value, place), xytext=(4 * sign, 0), textcoords="offset points", ha=side, va="center",
                          fontsize=8.5)  # fmt: skip
        axes.axvline(0.0, color=INK, linewidth=0.9)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(-1.22 * reach, 1.22 * reach)
        axes.grid(visible=False, axis="y")
        plain_numbers(axes.xaxis, bins=8)
        axes.set_xlabel("error of the simulation (%)")
        mean = np.mean(np.abs(values))
        axes.set_title(f"Errors: {mean:.1f} % on average, {max(values, key=abs):+.1f} % the worst", pad=10.0)
        said = (
            "Simulated over measured, less one: right of zero the simulation is slower. "
            f"Pale within {100 * GOOD:.0f} %, orange beyond {100 * FAIR:.0f} %."
        )
        marks = [
            Mark(axes, value, place, f"{name}: {percent(value / 100.0, 1, signed=True)}", place)
            for place, (name, value) in enumerate(zip(names, values, strict=True))
        ]
        return Painted(said, marks)

    return draw("errors", (10.0, 0.9 + 0.27 * len(errors)), paint)


def pairs(measured_ms: Floats, simulated_ms: Floats) -> Picture:
    """Each matched request as a point: its end-to-end latency there and here."""

    def paint(figure: Figure) -> Painted:
        axes = figure.subplots()
        both = np.concatenate((measured_ms, simulated_ms))
        low, high = (float(end) for end in np.percentile(both, (0, 100)))
        wide = high > LOG_FROM * low > 0.0
        for axis in (axes.xaxis, axes.yaxis):
            latency_axis(axis, low, high)
        start, end = low / 1.15 if wide else 0.0, high * 1.06 or 1.0
        axes.plot([start, end], [start, end], color=MUTED, linewidth=0.9, zorder=1)
        axes.scatter(measured_ms, simulated_ms, s=12, color=STYLE[SIMULATED].color, alpha=0.55, linewidths=0)
        axes.set_xlim(start, end)
        axes.set_ylim(start, end)
        axes.set_xlabel("measured")
        axes.set_ylabel("simulated")
        axes.set_title("End-to-end latency, request by request", pad=10.0)
        said = (
            "A point a request; on the line both agree. A cloud beside the line is a bias, a wide one is luck of order."
        )
        marks = []
        for place in some(len(measured_ms), MOST_MARKS):
            a, b = float(measured_ms[place]), float(simulated_ms[place])
            error = percent(b / a - 1 if a else 0.0, 1, signed=True)
            marks.append(Mark(axes, a, b, f"{latency(a)} measured, {latency(b)} simulated: {error}"))
        return Painted(said, marks)

    return draw("requests", (5.6, 4.6), paint)


def _panels(
    functions: Mapping[str, tuple[StepFunction, StepFunction]], buckets: int = PICTURE_BUCKETS
) -> tuple[list[Strip], float]:
    """A panel a function, and where their common axis of time ends."""
    end_s = max((side.end_s for both in functions.values() for side in both), default=0.0)
    panels = [
        Strip(title, {MEASURED: band(there, end_s, buckets=buckets), SIMULATED: band(here, end_s, buckets=buckets)})
        for title, (there, here) in functions.items()
    ]
    return panels, end_s


def _lines(facing: Facing) -> list[dict[str, CdfCurve]]:
    """The curves of both sides by the names of their quantities."""
    sides = ((MEASURED, facing.measured_ms), (SIMULATED, facing.simulated_ms))
    return [{QUANTITIES[key].name: _curve(label, side[key]) for key in _known(facing)} for label, side in sides]


def _known(facing: Facing) -> list[str]:
    return [metric for metric in QUANTITIES if metric in facing.measured_ms]


def _data(facing: Facing) -> Json:
    """Data for the page's script, as on the page of runs: the two sides are its runs."""
    panels, end_s = _panels(facing.over_time, BUCKETS)
    return {
        "runs": _SIDES,
        "curves": curves_data([QUANTITIES[metric] for metric in _known(facing)], _lines(facing)),
        "timeline": timeline_data(panels, (MEASURED, SIMULATED), end_s),
    }


def _curve(label: str, values_ms: Floats) -> CdfCurve:
    return CdfCurve(label, np.percentile(values_ms, GRID) if len(values_ms) else np.zeros(0), samples=len(values_ms))


def parts_table(parts: Sequence[tuple[str, float, float, float, float]]) -> TableRows | None:
    """Name, measured and simulated mean (ms), error, and what it adds to the mean end-to-end error (ms)."""
    if not parts:
        return None
    body = tuple(
        (name, *(short(round(value, 1)) for value in (there, here)), percent(error, 1, signed=True), signed(carries))
        for name, there, here, error, carries in parts
    )
    return TableRows(("part", "measured (ms)", "simulated (ms)", "error", "share of the error (ms)"), body)


# A simulation beside a scrape of a real server's metrics: the errors, and every figure of both sides.


@dataclass(frozen=True, slots=True)
class ScrapePage:
    """All that the page says. `errors` are signed fractions by name, as `validation_report.Facing` has them."""

    title: str
    subtitle: str
    rows: TableRows
    errors: Mapping[str, float]
    words: Sequence[str]
    notes: Sequence[str]
    scenario_yaml: str


def write_scrape(folder: Path, page: ScrapePage) -> Path:
    """Write the picture and report.html into `folder`; return the page's path. Equal input gives equal bytes."""
    pictures = [error_bars(page.errors)] if page.errors else []
    sections = [
        html.section("Verdict", html.paragraphs(list(page.words), "verdict")),
        html.section("Errors", *map(html.figure, pictures), html.table(page.rows)),
        html.section("Notes", html.paragraphs(list(page.notes), "notes")),
        html.section("Scenario", html.details("Resolved scenario", page.scenario_yaml)),
    ]
    return html.write_page(folder, page.title, page.subtitle, sections, pictures)
