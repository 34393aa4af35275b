"""The pieces of report.html, each a macro in templates/: every text escaped, every picture inside, nothing fetched.

A piece is `Markup`. Plain text in the place of a piece is escaped by the template, so a forgotten macro shows its tags
and runs none.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reports.columns import BLOCKS, Column, Summaries
from reports.enough import own_intervals
from reports.judged import Facts
from reports.style import Picture, Style
from reports.svg import inline
from reports.table import Cell, note, shown
from reports.tables import TableRows
from reports.units import tied

MAX_SVG = 1_500_000  # characters; a larger picture goes in as PNG


def page(title: str, subtitle: str, sections: Sequence[Markup]) -> str:
    """The whole file."""
    return _render("page", title, subtitle, [section for section in sections if section])


def section(title: str, *parts: Markup) -> Markup:
    """A heading and what follows it; nothing where nothing follows."""
    inside = [part for part in parts if part]
    return _render("section", title, inside) if inside else Markup()


def text(words: str) -> Markup:
    """A paragraph on the page itself."""
    return _render("text", words)


def paragraphs(texts: Sequence[str], kind: str) -> Markup:
    """A card of paragraphs; nothing without any."""
    return _render("paragraphs", [tied(each) for each in texts], kind) if texts else Markup()


def figure(picture: Picture) -> Markup:
    """A picture with its caption."""
    svg, png = None, ""
    if len(picture.svg) <= MAX_SVG:
        label = f'<svg role="img" aria-label="{escape(picture.name)}"'
        svg = Markup(inline(picture.svg, picture.name).replace("<svg", label, 1))
    else:
        png = base64.b64encode(picture.png).decode("ascii")
    return _render("figure", picture.name, tied(picture.caption), svg, png)


def pair(pictures: Sequence[Picture]) -> Markup:
    """Pictures side by side where the window is wide enough."""
    return _render("pair", [figure(picture) for picture in pictures]) if pictures else Markup()


@dataclass(frozen=True, slots=True)
class _Line:
    """A run's line in a block of the verdict table."""

    label: str
    color: str
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class _Block:
    title: str
    columns: Sequence[Column]
    lines: Sequence[_Line]


def verdict_tables(
    summaries: Summaries,
    style: Mapping[str, Style],
    facts: Mapping[str, Facts] | None = None,
    *,
    paired: bool = True,
) -> Markup:
    """The blocks of the verdict table, and what their marks mean; without marks where the runs are not paired."""
    own = own_intervals(summaries, facts)
    blocks = []
    for block in BLOCKS:
        if columns := shown(summaries, block, own, paired=paired):
            lines = [
                _Line(label, style[label].color, [by_label[label] for _, by_label in columns]) for label in summaries
            ]
            blocks.append(_Block(block.title, [column for column, _ in columns], lines))
    return _render("verdict_tables", blocks, note(summaries, own, paired=paired).replace("* best", "Highlighted: best"))


def table(rows: TableRows | None, *, prose: bool = False, title: str = "") -> Markup:
    """A table of text; with `prose`, its cells may break into lines. Nothing without rows."""
    if rows is None:
        return Markup()
    kinds = ["text prose" if prose else "text"] * rows.text_columns
    kinds += [""] * (len(rows.head) - rows.text_columns)
    return _render("table", title, [_name_and_unit(name) for name in rows.head], kinds, rows.body)


def _name_and_unit(name: str) -> tuple[str, str]:
    """A column's name, and its unit: what stands in brackets at the end."""
    stem, bracket, unit = name.partition(" (")
    return (stem, unit.removesuffix(")")) if bracket else (name, "")


def details(title: str, content: str) -> Markup:
    """Text as it is, folded away; nothing where it is empty."""
    return _render("details", title, content) if content else Markup()


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
