"""The pieces of report.html, each a macro in templates/: every text escaped, every picture inside, nothing fetched.

A piece is `Markup`. Plain text in the place of a piece is escaped by the template, so a forgotten macro shows its tags
and runs none.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reports.axes import highest
from reports.html.page_data import PERCENTILES, Json, json_text, marks_data
from reports.picture import CARD, GRID, HELD, INK, MUTED, Picture, Style, write
from reports.plots.cdf import CdfCurve
from reports.tables.details import TableRows
from reports.tables.verdict_table import notes, shown
from reports.units import MISSING, latency, tied
from reports.verdict.sentences import own_intervals
from reports.verdict.shown_metrics import Summaries, blocks_of
from reports.verdict.slo_targets import Facts

# A matplotlib SVG as part of a page: no references outside, its own ids, the page's colours, no style attributes.
#
# A page's Content-Security-Policy lets no `style` attribute work, as a file could bring one along. What matplotlib
# says in them is said in presentation attributes (SVG 2, 6.6) instead.

# A page holds several pictures: their ids must differ.
_IDS = re.compile(r'(\bid="|href="#|url\(#)')
_COLORS = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", CARD: "var(--card)", HELD: "var(--held)"}
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
