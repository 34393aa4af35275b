"""What all pictures share: axes, colours, marks, and how a picture is written."""

import io
import math
import os
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import (
    FixedLocator,
    Formatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from reports.units import Clock, TimeUnit, fitted, number, short
from reports.verdict.shown_metrics import Summaries, Summary, joined
from simulator.errors import InputError
from simulator.metrics.latency import Slo
from simulator.policies import Dash, style_of
from simulator.results.records import Floats, Records
from simulator.results.shared_prefixes import PrefixColumns

# Axes that read well: 1-2-5 labels, times in people's units, a visible SLO line; shades, and curves that coincide.

LOG_FROM = 20.0  # a range of values wider than this factor gets a logarithmic axis


def plain_numbers(axis: Axis, bins: int = 6) -> None:
    """At most `bins` round tick labels, never in scientific notation."""
    axis.set_major_locator(MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(_Plain())


class _Plain(Formatter):
    """Labels of three digits or, where these would not say where a tick stands, of as many as say it."""

    def __call__(self, value: float, pos: int | None = None) -> str:
        return short(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """The labels of all ticks of an axis."""
        apart = min((abs(b - a) for a, b in pairwise(values)), default=0.0)

        def says(places: int) -> bool:
            return all(abs(round(value, places) - value) <= 0.01 * apart for value in values)

        texts = [short(value) for value in values]
        read = [float(text.replace(",", "")) for text in texts]
        if all(abs(one - value) <= 0.01 * apart for one, value in zip(read, values, strict=True)):
            return texts
        places = next((places for places in range(7) if says(places)), 6)
        return [number(value, places) for value in values]


def log_numbers(axis: Axis, ratio: float, text: Callable[[float], str] = short) -> None:
    """A logarithmic scale for a range of so large a factor: labels at 1, 2 and 5 of each decade, or at 1 alone."""
    wide = ratio > 300.0
    _set(axis, "scale", "log")
    axis.set_major_locator(LogLocator(10.0, subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axis.set_minor_formatter(NullFormatter())
    if not wide:
        axis.set_minor_locator(NullLocator())


def scaled_numbers(axis: Axis, low: float, high: float) -> None:
    """Set tick labels for numbers from `low` to `high`: on a logarithmic scale where they lie far apart."""
    if low > 0.0 and high / low > LOG_FROM:
        log_numbers(axis, high / low)
    else:
        plain_numbers(axis)


def _set(axis: Axis, what: str, *values: Any) -> None:
    """Set the `scale` or the `lim` of either axis."""
    getattr(axis.axes, f"set_{'x' if isinstance(axis, XAxis) else 'y'}{what}")(*values)


def latency_axis(
    axis: Axis, low: float, high: float, *, around: float = 1.15, above: float = 1.04, most: int = 7, bins: int = 6
) -> None:
    """Set an axis for milliseconds from `low` to `high`: logarithmic where they are positive and lie far apart.

    The ends leave room by the factor `around` on a logarithmic scale, by `above` at the top of a linear one.
    """
    if low > 0.0 and high / low > LOG_FROM:
        log_times(axis, low, high, most)
        _set(axis, "lim", low / around, high * around)
    else:
        _set(axis, "lim", 0.0, high * above or 1.0)
        plain_times(axis, high, bins)


def run_time_axis(axes: Axes, end_s: float, clock: Clock, words: str = "time") -> None:
    """Set the x axis for the time of a run, from 0 to its end."""
    axes.set_xlim(0.0, max(end_s / clock.seconds, 1e-9))
    plain_numbers(axes.xaxis, bins=12)
    axes.set_xlabel(f"{words} ({clock.unit})")


def grid_of(figure: Figure, count: int, across: int) -> list[Axes]:
    """Axes for so many panels, row by row."""
    grid: list[Axes] = figure.subplots(max(-(-count // across), 1), across, squeeze=False).ravel().tolist()
    for unused in grid[count:]:
        unused.set_axis_off()
    return grid[:count]


def plain_times(axis: Axis, high_ms: float, bins: int = 6) -> None:
    """Round tick labels for milliseconds, all in the unit in which people say the largest."""
    unit = _unit(high_ms)
    axis.set_major_locator(_Scaled(unit.milliseconds, bins))
    axis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value, unit)))


def log_times(axis: Axis, low_ms: float, high_ms: float, most: int = 7) -> None:
    """A logarithmic scale for milliseconds, with ticks where people have words: 100 ms, 1 s, 10 s, 1 min, 1 h."""
    _set(axis, "scale", "log")
    low, high = low_ms / 1.2, high_ms * 1.2
    apart = math.log(high / low) / most
    ticks: list[float] = []
    for tick in (*_FEW_TIMES, *_MANY_TIMES):
        if low <= tick <= high and all(abs(math.log(tick / other)) >= apart for other in ticks):
            ticks.append(tick)
    axis.set_major_locator(FixedLocator(sorted(ticks) or [low_ms, high_ms]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: time_text(value)))
    axis.set_minor_formatter(NullFormatter())
    axis.set_minor_locator(NullLocator())


def time_text(milliseconds: float, unit: TimeUnit | None = None) -> str:
    """A tick in `unit`, or in its own: 200 ms, 5 s, 10 min."""
    unit = unit or _unit(milliseconds)
    return f"{short(milliseconds / unit.milliseconds)} {unit.unit}" if milliseconds else "0"


_MANY_TIMES = tuple(
    [digit * 10.0**power for power in range(-3, 4) for digit in (1.0, 2.0, 5.0)]
    + [1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 18e6, 36e6, 72e6, 18e7]
)
_FEW_TIMES = (*(10.0**power for power in range(-3, 5)), 6e4, 6e5, 36e5, 36e6, 36e7)


def _unit(milliseconds: float) -> TimeUnit:
    """Milliseconds below a second, seconds below a minute, minutes below an hour, then hours."""
    size = abs(milliseconds)
    if size < 1e3:
        return TimeUnit("ms", 1.0)
    if size < 6e4:
        return TimeUnit("s", 1e3)
    return TimeUnit("min", 6e4) if size < 36e5 else TimeUnit("h", 36e5)


class _Scaled(MaxNLocator):
    """Ticks that are round in a unit of so many of the axis's own."""

    def __init__(self, unit: float, bins: int) -> None:
        super().__init__(bins, steps=[1, 2, 2.5, 5, 10])
        self._unit_size = unit

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        found = super().tick_values(vmin / self._unit_size, vmax / self._unit_size)
        return [float(each) * self._unit_size for each in found]


def slo_line(axes: Axes, limit_ms: float, of: str = "") -> None:
    """A vertical line at the SLO over all curves, named above the plot; `of` says whose limit it is."""
    axes.axvline(limit_ms, color=INK, linewidth=1.1, linestyle=(0, (2.0, 2.0)), zorder=6)
    text = f"SLO {time_text(limit_ms)}{of and f' ({of})'}"
    at = axes.transAxes.inverted().transform(axes.transData.transform((limit_ms, 0.0)))[0]
    axes.annotate(
        text,
        (limit_ms, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2.5),
        textcoords="offset points",
        ha="left" if at < 0.12 else "right" if at > 0.88 else "center",
        va="bottom",
        fontsize=8.0,
        color=INK,
        zorder=6,
    )


TICKS = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)


def height(percent: Floats) -> Floats:
    """Nines of a percentile: 0 at p0, 1 at p90, 2 at p99, and no more than 4.3.

    It is the axis of Gil Tene's HdrHistogram plots (https://hdrhistogram.github.io/HdrHistogram): each further nine
    takes as much room as the one before. A linear one would leave p99 and all beyond the topmost hundredth.
    """
    return np.asarray(-np.log10(np.maximum(1.0 - percent / 100.0, 5e-5)))


def highest(samples: int) -> float:
    """The highest percentile that so many samples have one value beyond."""
    return 100.0 * (1.0 - 1.0 / max(samples, 1))


def tail_axis(axis: Axis, top: float) -> None:
    """Ticks and ends of an axis of `height`, up to the percentile `top`."""
    ticks = [tick for tick in TICKS if tick <= top]
    axis.set_ticks(height(np.array(ticks)).tolist(), [f"{tick:g}" for tick in ticks])
    _set(axis, "lim", 0.0, float(height(np.array(top))) * 1.01)


# Shades of a cell by its value, and text that can be read on them.

DARK, LIGHT = "#10141a", "#fafbfc"  # text on a cell: no ink of the page's, which changes with its theme
LEAST_SPAN = 0.05  # of the largest value of a map


def text_on(rgba: Sequence[float]) -> str:
    """The colour of text that can be read on this one (its relative luminance, as WCAG 2 has it)."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgba[:3]]
    luminance = 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    return DARK if luminance > 0.22 else LIGHT


def printed(value: float) -> float:
    """The value that a cell's text says."""
    return float(short(value).replace(",", "")) if np.isfinite(value) else value


def shading(values: Floats) -> Normalize:
    """From values to shades, over those that are finite: a logarithm where they lie far apart.

    Small differences have shades that hardly differ: the ends are at least `LEAST_SPAN` apart, around the middle.
    """
    known = values[np.isfinite(values)]
    low, high = float(known.min()), float(known.max())
    if high - low < (least := LEAST_SPAN * max(abs(low), abs(high)) or 1.0):
        middle = (low + high) / 2
        return Normalize(middle - least / 2, middle + least / 2)
    return LogNorm(low, high) if low > 0 and high / low > LOG_FROM else Normalize(low, high)


# Curves that lie on each other: a picture has to say so, as it shows only the one on top.

NEAR = 0.005  # of the picture's range: what is nearer cannot be seen apart


def coinciding(curves: Mapping[str, Floats], span: float) -> list[list[str]]:
    """Groups of two labels or more whose values differ nowhere by more than the width of a line.

    `span` is the range that the picture shows; a value that is missing in both is no difference.
    """
    groups: list[list[str]] = []
    for label, values in curves.items():
        for group in groups:
            first = curves[group[0]]
            if first.shape != values.shape or not len(values):
                continue
            gap = np.where(np.isnan(first) & np.isnan(values), 0.0, np.abs(first - values))
            if (gap <= NEAR * span).all():
                group.append(label)
                break
        else:
            groups.append([label])
    return [group for group in groups if len(group) > 1]


def equal(found: Mapping[str, Hashable]) -> list[list[str]]:
    """Groups of two labels or more that have equal values."""
    groups: dict[Hashable, list[str]] = {}
    for label, value in found.items():
        groups.setdefault(value, []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def said(groups: list[list[str]], where: str = "") -> str:
    """The sentence for a caption; nothing where no curves coincide."""
    return "".join(f" {joined(shorten(label) for label in group)} coincide{where}." for group in groups)


# Pictures of a report: their one look, the marks that readers can point at, and the files that they become.
#
# Colours are Okabe and Ito's, and a violet, told apart by colour-blind readers too; the line style says the same a
# second time. A built-in policy has the same colour in every report. Others take the free colours in order of
# appearance; a second run of the same policy takes its policy's hue in another shade and another line style. Three
# or more runs of one policy differ in their settings, by which they are ordered: so are their colours, from dark to
# light.


def write(path: Path, content: bytes | str) -> None:
    """Write a file beside its place and move it there, so that it is whole or absent; make its folder if missing.

    Raises InputError where that cannot be done.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_bytes(data)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", hint="choose another folder") from error


# Values of a picture that readers can point at: where each stands, and what it says.

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


# A colour and a line style a run, fonts, sizes, and bytes that never change.

# The inks that are no run's. The report swaps them for its own light or dark ones where it embeds an SVG.
INK = "#1b1f24"
MUTED = "#5b6471"
GRID = "#dfe3e8"
CARD = "#fefefe"
HELD = "#c9ced5"  # of a slot that does nothing useful

OTHERS: tuple[str, ...] = ("#56b4e9", "#e69f00", "#775ce6")
DASHES: tuple[Dash, ...] = (
    "-",
    (0, (3.0, 1.2)),
    (0, (1.2, 1.3)),
    (0, (6.0, 1.6, 1.2, 1.6)),
    (0, (3.0, 1.4, 1.0, 1.4, 1.0, 1.4)),
    (0, (9.0, 2.0)),
)
SHADES = (0.0, -0.42, 0.45, -0.22, 0.25, -0.6, 0.6, -0.32, 0.35, -0.12, 0.14)  # to black below 0, to white above

ORDERED_FROM = 3  # so many runs of one policy alone are values of a setting
MAP = "viridis"
_FIRST, _LAST = 0.28, 0.84  # of the map: its ends are hard to see, on a dark page and on a white one

PNG_DPI = 160
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "mathtext.fontset": "dejavusans",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9.0,
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.facecolor": CARD,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "figure.facecolor": CARD,
    "figure.edgecolor": CARD,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "butt",
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "batchlab",
    "svg.fonttype": "path",
    "path.simplify": True,
    "path.simplify_threshold": 0.2,
}


@dataclass(frozen=True, slots=True)
class Style:
    """The look of one run in every picture: a colour as #rrggbb and a matplotlib line style."""

    color: str
    dash: Dash


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn figure: its file name without ending, both renderings, what to look for in it, and what can be read off.

    `series` are the curves that a reader of a page can hide, in the order of the numbers that `spots` have.
    """

    name: str
    caption: str = field(repr=False)
    png: bytes = field(repr=False)
    svg: str = field(repr=False)
    spots: Sequence[Spot] = field(default=(), repr=False)
    series: Sequence[Series] = field(default=(), repr=False)

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: str | Path) -> Path:
        """Write it as PNG or SVG, by the ending of `path`. Returns the path. Raises InputError where that fails."""
        target = Path(path)
        contents: dict[str, bytes | str] = {".png": self.png, ".svg": self.svg}
        if target.suffix not in contents:
            raise InputError(f"a picture is written as .png or .svg, not {target.suffix or 'without an ending'}")
        write(target, contents[target.suffix])
        return target


def mix(color: str, share: float) -> str:
    """`color` moved towards white (share > 0) or black (share < 0), by that share of the way."""
    goal = 255.0 if share > 0 else 0.0
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (goal - part) * abs(share)):02x}" for part in parts)


def styles(runs: Sequence[tuple[str, str]]) -> dict[str, Style]:
    """A style for each (label, policy), by label. Depends on the order of the runs and on nothing else."""
    if len(runs) >= ORDERED_FROM and len({policy for _, policy in runs}) == 1:
        shades = ramp(len(runs))
        return {label: Style(shades[at], DASHES[at % len(DASHES)]) for at, (label, _) in enumerate(runs)}
    others: dict[str, int] = {}
    seen: dict[str, int] = {}
    taken: set[str] = set()
    result: dict[str, Style] = {}
    for label, policy in runs:
        own = style_of(policy)
        if own is not None:
            color, dash = own
            first = DASHES.index(dash) if dash in DASHES else len(DASHES) - 1
        else:
            first = others.setdefault(policy, len(others))
            color, dash = OTHERS[first % len(OTHERS)], DASHES[first % len(DASHES)]
        again = seen.get(policy, 0)
        seen[policy] = again + 1
        if again:
            dash = DASHES[(first + again) % len(DASHES)]
        shades = [mix(color, shade) for shade in SHADES]
        color = next((shade for shade in shades if shade not in taken), shades[again % len(shades)])
        taken.add(color)
        result[label] = Style(color, dash)
    return result


def ramp(count: int) -> list[str]:
    """So many colours from dark to light."""
    steps = max(count - 1, 1)
    return [to_hex(colormaps[MAP](_FIRST + (_LAST - _FIRST) * place / steps)) for place in range(count)]


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib's own defaults and our changes, whatever the user's matplotlibrc says; put back afterwards."""
    settings: Any = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")}
    settings.update(RC)
    with warnings.catch_warnings(), mpl.rc_context(settings):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a label in a script DejaVu lacks
        yield


def draw(name: str, size: tuple[float, float], paint: Callable[[Figure], str | Painted]) -> Picture:
    """A picture of `size` inches. `paint` draws on the figure and returns the caption (plain text), or more with it."""
    with look():
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(hspace=0.04))
        FigureCanvasAgg(figure)
        said = paint(figure)
        painted = said if isinstance(said, Painted) else Painted(said)
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # laid out once, for both renderings
        found = spots(figure, painted.marks)
        png, svg = io.BytesIO(), io.StringIO()
        figure.savefig(png, format="png", dpi=PNG_DPI, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(name, painted.caption, png.getvalue(), svg.getvalue(), found, tuple(painted.series))


def folded(label: str, most: int) -> str:
    """A label of several settings in lines of about so many characters, broken behind commas: no value is cut."""
    lines = [""]
    for part in label.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) + 2 > most:
            lines[-1] += ","
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return "\n".join(shorten(line, 2 * most) for line in lines)


def shorten(label: str, most: int = 44) -> str:
    """A label that fits a picture; matplotlib would hide one that begins with an underscore."""
    text = fitted(label, most)
    return f" {text}" if text.startswith("_") else text


# A plot of a report, and the runs that it is drawn from.


@dataclass(frozen=True, slots=True)
class ReportRun:
    """One line of a comparison: a policy (or a scenario) and its results.

    `records` are those of the first seed: pictures show one run. `summaries` hold one summary a seed, in the same
    order of seeds for every run, as comparisons are paired. `warmup_s` and `cooldown_s` are the cuts that the
    summaries were made with. `state` says in a sentence how the run is, `findings` are rows of finding, weight, time,
    evidence and remedy, of the first seed. `prefixes` are those that its prompts share, where a prefix cache found any.
    """

    label: str
    policy: str
    records: Records
    summaries: Sequence[Summary]
    scenario_yaml: str = ""
    slo: Slo | None = None
    warmup_s: float = 0.0
    cooldown_s: float = 0.0
    state: str = ""
    findings: Sequence[tuple[str, str, str, str, str]] = ()
    prefixes: PrefixColumns | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture's place on the page, its name, its section, and the function that paints it.

    Plots stand in the order of `place`. Plots of a section that are `small` stand side by side, before the others.
    """

    place: int
    name: str
    section: str
    paint: Callable[[], Picture]
    small: bool = False


@dataclass(frozen=True, slots=True)
class DrawnRuns:
    """The runs of a report, and the style of each by its label."""

    runs: Sequence[ReportRun]
    style: Mapping[str, Style]

    @property
    def labelled(self) -> list[tuple[str, Records]]:
        """Label and records of each run."""
        return [(run.label, run.records) for run in self.runs]

    @property
    def summaries(self) -> Summaries:
        """The summaries of each run by its label."""
        return {run.label: run.summaries for run in self.runs}

    @property
    def slo(self) -> Slo | None:
        """The SLO that all runs share."""
        first = self.runs[0].slo
        return first if all(run.slo == first for run in self.runs) else None

    def any(self, has: Callable[[Records], bool]) -> bool:
        """Return whether this is true of the records of any run."""
        return any(has(run.records) for run in self.runs)
