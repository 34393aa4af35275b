"""The pieces of report.html, each a macro in templates/, and the data of its script; nothing is fetched."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from numpy.typing import ArrayLike

from reports.picture import CARD, HELD, INK, MUTED, Picture, Style, highest, write
from reports.picture import GRID as LINES
from reports.plots.cdf import GRID, CdfCurve, Quantity, quantities, top_percent
from reports.plots.timeline import Strip, apart, shown_until, strips
from reports.slots import Stays, assign, stalls, stays, window
from reports.tables.details import TableRows
from reports.tables.verdict_table import notes, shown
from reports.units import MISSING, latency, tied
from reports.verdict.sentences import own_intervals
from reports.verdict.shown_metrics import Facts, Summaries, blocks_of
from simulator.results.records import Floats, Records

# Data for the page's script: curves, time series and slots, finer than the pictures and still small.

# Numbers as a page carries them: few characters each, and no more digits than a picture can show.

Json = Mapping[str, Any]
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def rounded(values: ArrayLike, digits: int = 3) -> list[float | int | None]:
    """Values with so many significant digits; None where there is none."""
    found: list[float | int | None] = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        if value != value or value in (float("inf"), float("-inf")):
            found.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        found.append(int(short) if short == int(short) else short)
    return found


def steps_between(times_s: Floats, unit_s: float) -> list[int]:
    """Rising times as whole units: the first, then each one's distance to the one before. Errors do not add up."""
    whole = np.rint(times_s / unit_s).astype(np.int64)
    return [] if not len(whole) else [int(whole[0]), *np.diff(whole).tolist()]


def json_text(content: Json) -> Markup:
    """JSON that can stand in a `<script>`: no text in it ends the element or begins another."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, escaped in _UNSAFE.items():
        text = text.replace(sign, escaped)
    return Markup(text)


def marks_data(pictures: Iterable[Picture]) -> Json:
    """The words at each spot of the pictures that have any, and the curves that can be hidden, by name."""
    return {
        picture.name: {
            "x": [spot.x for spot in picture.spots],
            "y": [spot.y for spot in picture.spots],
            "of": [spot.of for spot in picture.spots],
            "words": [spot.words for spot in picture.spots],
            "series": [{"label": each.label, "color": each.color} for each in picture.series],
        }
        for picture in pictures
        if picture.spots
    }


# Curves, time series and slots, finer than the pictures.

BUCKETS = 1200
PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
MOST_STAYS = 14_000  # of all runs together
MOST_STEPS = 40_000
UNIT_S = 1e-4  # of times in slots: a tenth of a millisecond
Runs = Sequence[tuple[str, Records]]


def page_data(runs: Runs, style: Mapping[str, Style], lines: Sequence[Mapping[str, CdfCurve]]) -> Json:
    """The page's data, in the order of the runs. `lines` are each run's curves by their names."""
    return {
        "runs": [{"label": label, "color": style[label].color} for label, _ in runs],
        "curves": curves_data(quantities(None), lines),
        "timeline": timeline_data(strips(runs, BUCKETS), [label for label, _ in runs], shown_until(runs)),
        "slots": _slots(runs),
    }


def curves_data(shown: Sequence[Quantity], lines: Sequence[Mapping[str, CdfCurve]]) -> Json:
    """The latencies of the quantities at a few percentiles, for each run its `lines` by their names."""
    some = GRID[::4]
    grid = np.unique(np.concatenate((some, np.array(PERCENTILES), GRID[-41::8])))
    found = {}
    for quantity in shown:
        of_runs = [each[quantity.name] for each in lines]
        found[quantity.name] = {
            "title": quantity.title,
            "drawn": top_percent(quantity, [one for one in of_runs if len(one.at_ms)]),
            "ms": [rounded(np.interp(grid, GRID, one.at_ms), 4) if len(one.at_ms) else None for one in of_runs],
            "samples": [one.samples for one in of_runs],
        }
    return {"percents": rounded(grid, 6), "quantities": found}


def timeline_data(panels: Sequence[Strip], labels: Sequence[str], end_s: float) -> Json:
    """The panels over [0, end_s], a line in each for every label."""
    found = [
        {
            "title": panel.title.replace("\n", " "),
            "limit": panel.limit,
            "linear": apart(panel.bands),
            "mean": [rounded(panel.bands[label].mean) for label in labels],
            "high": [rounded(panel.bands[label].high) for label in labels],
        }
        for panel in panels
    ]
    return {"end": end_s, "panels": found}


def _slots(runs: Runs) -> Json:
    everything = [stays(records) for _, records in runs]
    window_s = window(everything)
    from_s, to_s = _reach(everything, *window_s)
    packed = []
    for (_, records), stay in zip(runs, everything, strict=True):
        shown = stay.within(from_s, to_s)
        packed.append({**_stays(records, shown), **_steps(records, from_s, to_s, MOST_STEPS // len(runs))})
    return {"from": from_s, "to": to_s, "window": list(window_s), "unit": UNIT_S, "runs": packed}


def _reach(runs: Sequence[Stays], from_s: float, to_s: float) -> tuple[float, float]:
    """The widest stretch around the window that has few enough stays: the whole run where it is short."""
    some = [stay for stay in runs if len(stay)]
    if not some:
        return from_s, to_s
    first = min(float(stay.start_s[0]) for stay in some)
    last = max(float(stay.end_s.max()) for stay in some)
    share = 1.0
    while share > 1e-6:
        ends = from_s - share * (from_s - first), to_s + share * (last - to_s)
        if sum(len(stay.within(*ends)) for stay in some) <= MOST_STAYS:
            return ends
        share *= 0.8
    return from_s, to_s


def _stays(records: Records, stay: Stays) -> Json:
    """Columns of the stays: the start as a distance to the one before, the other times as lengths of phases."""
    edges = np.rint(np.stack([stay.start_s, stay.computed_s, stay.prefilled_s, stay.done_s, stay.end_s]) / UNIT_S)
    lengths = np.diff(edges, axis=0).astype(np.int64)
    rows = stay.row
    named = None if records.request_ids is None else [records.request_id(row) for row in rows.tolist()]
    return {
        "slots": records.max_num_seqs,
        "slot": assign(stay).tolist(),
        "start": steps_between(stay.start_s, UNIT_S),
        "lengths": lengths.tolist(),
        "row": rows.tolist(),
        "id": named,
        "input": records.requests.input_tokens[rows].tolist(),
        "output": records.requests.output_tokens[rows].tolist(),
    }


def _steps(records: Records, from_s: float, to_s: float, most: int) -> Json:
    """The ends of the first replica's steps, and when decodes stood still; nothing where these are too many."""
    mine = records.rows.of_replicas(0, 1)
    first, last = (int(mine.first_step[0]), int(mine.first_step[-1] + mine.repeat[-1])) if len(mine.repeat) else (0, 0)
    ends = records.step_end_s[first:last]
    ends = ends[(ends >= from_s) & (ends <= to_s)]
    begin, end = stalls(records, from_s, to_s)
    both = np.stack([begin, end], axis=1).ravel() if len(begin) <= most // 4 else np.zeros(0)
    return {"steps": steps_between(ends, UNIT_S) if len(ends) <= most else None, "stalls": steps_between(both, UNIT_S)}


# A matplotlib SVG as part of a page: no references outside, its own ids, the page's colours, no style attributes.
#
# A page's Content-Security-Policy lets no `style` attribute work, as a file could bring one along. What matplotlib
# says in them is said in presentation attributes (SVG 2, 6.6) instead.

# A page holds several pictures: their ids must differ.
_IDS = re.compile(r'(\bid="|href="#|url\(#)')
_COLORS = {INK: "var(--ink)", MUTED: "var(--muted)", LINES: "var(--grid)", CARD: "var(--card)", HELD: "var(--held)"}
_RUN = re.compile(r'<g id="run-(\d+)[^"]*"')
_STYLE = re.compile(r'\sstyle="([^"]*)"')
_PATH = re.compile(r'(?<=\sd=")[^"]*')
# The style element has joins and caps: report.css says the same.
_NEEDLESS = re.compile(r"(?:<metadata>.*?</metadata>|<!--.*?-->|<style\b.*?</style>)\s*", re.DOTALL)
_BETWEEN = re.compile(r">\s+<")  # matplotlib's indentation: half of what a browser would have to keep
_LONG = re.compile(r"(\d\.\d\d)\d+")


def inline(svg: str, name: str) -> str:
    """The `<svg>` element alone; `name` goes in front of its ids, and what is of a run gets its class."""
    text = svg[svg.index("<svg") :]
    text = _NEEDLESS.sub("", text)
    text = re.sub(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"', "", text, count=3)
    text = _BETWEEN.sub("><", text.replace("xlink:href=", "href="))
    text = _RUN.sub(r'<g class="run-\1"', text)
    text = _IDS.sub(rf"\g<1>{name}-", text)
    text = _STYLE.sub(_attributes, text)
    text = _PATH.sub(lambda found: _LONG.sub(r"\1", found[0]), text)  # hundredths of a point
    for color, variable in _COLORS.items():
        text = text.replace(color, variable)
    return text


def themed(color: str) -> str:
    """A colour as a page has it: an ink follows the page's theme."""
    return _COLORS.get(color, color)


def _attributes(found: re.Match[str]) -> str:
    """`style="fill: none; stroke-width: 0.8"` as ` fill="none" stroke-width="0.8"`."""
    parts = (part.partition(":") for part in found[1].split(";") if part.strip())
    return "".join(f' {name.strip()}="{value.strip()}"' for name, _, value in parts)


# The pieces of the page.

MAX_SVG = 600_000  # characters; a larger picture goes in as PNG
WIDE = 500.0  # points: a wider picture cannot be read on a phone, and scrolls by itself there
SCRIPTS = ("base", "choose", "hover", "view", "timeline", "slots", "marks", "tables", "start")
TITLES = {
    "gantt": "What the slots did",
    "kv_by_request": "KV memory by request",
    "ttft_cdf": "Time to first token",
    "tpot_cdf": "Time per output token",
    "itl_cdf": "Gap between tokens",
    "e2el_cdf": "End-to-end latency",
    "timeline": "Queue, batch, memory and step time over time",
    "fairness": "Waits by class over time",
    "prefix_hits": "Prefix cache over time",
    "kv_tiers": "Prompt tokens by where their KV came from",
    "prefix_tree": "Prefixes that prompts share",
    "balance": "Requests at each replica over time",
    "throughput": "Throughput and goodput",
    "latency": "Latency percentiles",
    "load": "Latency over the load",
    "throughput_latency": "Latency over throughput",
    "front_speed": "Throughput against speed",
    "front_cost": "Cost against the SLO",
    "rates": "How each limit is used over the rate",
    "settings": "Largest rate and cost over two settings",
    "requests": "End-to-end latency, request by request",
}


def write_page(
    folder: Path,
    title: str,
    subtitle: str,
    sections: Sequence[Markup],
    pictures: Iterable[Picture],
    data: Json = MappingProxyType({}),
) -> Path:
    """Write report.html, and `pictures` as plots/*.png and plots/*.svg, into `folder`; return the path of the page.

    The page's script gets `data` and the marks of the pictures. Equal input gives equal bytes. Raises InputError where
    the folder cannot be written.
    """
    drawn, path = list(pictures), folder / "report.html"
    for picture in drawn:
        for ending in (".png", ".svg"):
            picture.save(folder / "plots" / f"{picture.name}{ending}")
    write(path, page(title, subtitle, sections, {**data, "marks": marks_data(drawn)}))
    return path


def page(title: str, subtitle: str, sections: Sequence[Markup], data: Json | None = None) -> str:
    """The whole file; with `data` also the script that lets readers choose, zoom and read values off."""
    style, script = _own("report.css"), _script()
    inside = [section for section in sections if section]
    packed = Markup() if data is None else json_text(data)
    return _render("page", title, subtitle, _contents(inside), inside, policy(style, script), style, script, packed)


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy: our style and our script by their hashes, pictures in the page, nothing else.

    Whatever a file brings along runs nothing, looks like nothing and fetches nothing.
    """
    allowed = {"default-src": "'none'", "img-src": "data:", "style-src": _hash(style), "script-src": _hash(script),
               "base-uri": "'none'", "form-action": "'none'"}  # fmt: skip
    return "; ".join(f"{what} {where}" for what, where in allowed.items())


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _own(name: str) -> Markup:
    """A file of ours beside the templates, as it is."""
    return Markup((Path(__file__).with_name("templates") / name).read_text(encoding="utf-8"))


@cache
def _script() -> Markup:
    """The files of the page's script in one, each seeing those before it."""
    parts = [_own(f"script/{name}.js") for name in SCRIPTS]
    return Markup('"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n")


def section(title: str, *parts: Markup, folded: bool = False) -> Markup:
    """A heading and what follows it, which a reader opens where it is `folded`; nothing where nothing follows."""
    inside = [part for part in parts if part]
    return _render("section", title, _anchor(title), inside, folded) if inside else Markup()


def _anchor(title: str) -> str:
    """The id of a section: its title in small letters and hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))


def _contents(sections: Sequence[Markup]) -> Markup:
    """Links to the sections, by their headings."""
    found = [re.search(r'<section id="([^"]*)">.*?<h2>(.*?)</h2>', each, re.DOTALL) for each in sections]
    return _render("contents", [(each[1], Markup(each[2])) for each in found if each])


def text(words: str) -> Markup:
    """A paragraph on the page itself."""
    return _render("text", words)


def paragraphs(texts: Sequence[str], kind: str) -> Markup:
    """A card of paragraphs; nothing without any."""
    return _render("paragraphs", [tied(each) for each in texts], kind) if texts else Markup()


def figure(picture: Picture, explorer: Markup = Markup()) -> Markup:  # noqa: B008 # a constant
    """A picture with its caption; `explorer` takes its place on a screen with a script."""
    svg, png = None, ""
    label = title_of(picture.name)
    if len(picture.svg) <= MAX_SVG:
        opening = f'<svg role="img" aria-label="{escape(label)}"'
        svg = Markup(inline(picture.svg, picture.name).replace("<svg", opening, 1))
    else:
        png = base64.b64encode(picture.png).decode("ascii")
    wide = _width(picture.svg) > WIDE
    return _render("figure", picture.name, label, tied(picture.caption), svg, png, wide, explorer)


def title_of(name: str) -> str:
    """A picture's name for who cannot see it."""
    return TITLES.get(name, name.replace("_", " "))


def _width(svg: str) -> float:
    found = re.search(r'<svg[^>]*\swidth="([\d.]+)pt"', svg)
    return float(found[1]) if found else 0.0


def latencies(
    runs: Sequence[Mapping[str, str]], titles: Mapping[str, str], lines: Sequence[Mapping[str, CdfCurve]]
) -> Markup:
    """Controls for the `runs` (label and color) on the page, and their latencies at a percentile that readers choose.

    `titles` names the latencies, `lines` has the curve of each for every run. Choosing needs the page's data.
    """
    at = [{name: each[name] for name in titles} for each in lines]
    rows = [
        {name: latency(one.percentile(99.0)) if highest(one.samples) >= 99.0 else MISSING for name, one in each.items()}
        for each in at
    ]
    return _render("controls", runs, [f"{each:g}" for each in PERCENTILES], titles, rows)


def explorer(kind: str, label: str, *, steps: bool = False, colors: Sequence[str] = ()) -> Markup:
    """A picture to zoom into, drawn by the script: `timeline` or `slots`; `colors` are those of the runs."""
    return _render("explorer", kind, label, steps, colors)


def pair(pictures: Sequence[Picture]) -> Markup:
    """Pictures side by side where the window is wide enough."""
    return _render("pair", [figure(picture) for picture in pictures]) if pictures else Markup()


def verdict_tables(
    summaries: Summaries, style: Mapping[str, Style], facts: Mapping[str, Facts] | None = None, *, paired: bool = True
) -> Markup:
    """The blocks of the verdict table, and what their marks mean; without marks where the runs are not paired."""
    own = own_intervals(summaries, facts)
    blocks = []
    for block in blocks_of(summaries):
        if columns := shown(summaries, block, own, paired=paired):
            lines = [(label, style[label].color, [cells[label] for _, cells in columns]) for label in summaries]
            blocks.append((block.title, [column for column, _ in columns], lines))
    said = [text.replace("* best", "Highlighted: best") for text in notes(summaries, own, paired=paired)]
    return _render("verdict_tables", blocks, said)


def table(
    rows: TableRows | None, *, prose: bool = False, title: str = "", sortable: bool = False, hidden: Sequence[int] = ()
) -> Markup:
    """A table of text; with `prose`, its cells may break into lines. Nothing without rows.

    The script sorts a `sortable` one by any of its columns, and lets readers choose among them where some are `hidden`
    at first.
    """
    if rows is None:
        return Markup()
    kinds = ["text prose" if prose else "text"] * rows.text_columns
    kinds += [""] * (len(rows.head) - rows.text_columns)
    kinds = [f"{kind} off".lstrip() if place in hidden else kind for place, kind in enumerate(kinds)]
    return _render("table", title, [_name_and_unit(name) for name in rows.head], kinds, rows.body, sortable)


def _name_and_unit(name: str) -> tuple[str, str]:
    """A column's name, and its unit: what stands in brackets at the end."""
    stem, bracket, unit = name.partition(" (")
    return (stem, unit.removesuffix(")")) if bracket else (name, "")


def details(title: str, content: str) -> Markup:
    """Text as it is, folded away; nothing where it is empty."""
    return _render("details", title, content) if content else Markup()


def command(words: str, line: str) -> Markup:
    """A command to copy, and what it does; nothing without one."""
    return _render("command", words, line) if line else Markup()


def _render(macro: str, *arguments: object) -> Markup:
    """The macro of the template of its name."""
    module = _environment().get_template(f"{macro}.html").module
    return Markup(getattr(module, macro)(*arguments))


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
