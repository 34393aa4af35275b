"""The pieces of report.html: every text escaped, every picture inside the file, nothing fetched."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from reports.columns import BLOCKS, Block, Summaries
from reports.style import Picture, Style
from reports.svg import inline
from reports.table import Cell, note, shown
from reports.tables import TableRows
from reports.units import tied

MAX_SVG = 1_500_000  # characters; a picture with more than that goes in as PNG
CSS = Path(__file__).with_name("templates") / "report.css"


def page(title: str, subtitle: str, sections: Sequence[str]) -> str:
    """The whole file. `sections` are HTML already."""
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{CSS.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="sub">{escape(subtitle)}</p>\n'
        + "\n".join(section for section in sections if section)
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what follows it; nothing where nothing follows."""
    inside = "\n".join(part for part in parts if part)
    return f"<h2>{escape(title)}</h2>\n{inside}" if inside else ""


def paragraphs(texts: Sequence[str], kind: str) -> str:
    """A card of paragraphs."""
    inside = "".join(f"<p>{escape(tied(text))}</p>" for text in texts)
    return f'<div class="card {kind}">{inside}</div>' if inside else ""


def figure(picture: Picture) -> str:
    """A picture with its caption."""
    if len(picture.svg) <= MAX_SVG:
        name = escape(picture.name, quote=True)
        image = inline(picture.svg, picture.name).replace("<svg", f'<svg role="img" aria-label="{name}"', 1)
    else:
        data = base64.b64encode(picture.png).decode("ascii")
        image = f'<img alt="{escape(picture.name, quote=True)}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{escape(tied(picture.caption))}</figcaption></figure>"


def pair(pictures: Sequence[Picture]) -> str:
    """Pictures side by side where the window is wide enough."""
    return f'<div class="pair">{"".join(figure(picture) for picture in pictures)}</div>' if pictures else ""


def verdict_tables(summaries: Summaries, style: Mapping[str, Style]) -> str:
    """The blocks of the verdict table, and what their marks mean."""
    tables = "".join(_block(block, summaries, style) for block in BLOCKS)
    text = note(summaries).replace("* best", "Highlighted: best")
    return f'<div class="card">{tables}<p class="note">{escape(text)}</p></div>'


def _block(block: Block, summaries: Summaries, style: Mapping[str, Style]) -> str:
    columns = shown(summaries, block)
    if not columns:
        return ""
    head = "".join(
        f"<th>{escape(column.title)}<small>{escape(column.unit) or '&nbsp;'}</small></th>" for column, _ in columns
    )
    lines = []
    for label in summaries:
        chip = f'<span class="chip" style="background:{style[label].color}"></span>'
        cells = "".join(_cell(by_label[label]) for _, by_label in columns)
        lines.append(f'<tr><td class="text">{chip}{escape(label)}</td>{cells}</tr>')
    return (
        f'<h3>{escape(block.title)}</h3><div class="wide"><table><thead><tr><th class="text"></th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    interval = f" <i>{escape(cell.interval)}</i>" if cell.interval else ""
    kind = ' class="best"' if cell.is_best else ""
    return f"<td{kind}>{escape(cell.mean)}{interval}</td>"


def table(rows: TableRows | None, *, prose: bool = False) -> str:
    """A table of text; with `prose`, its cells may break into lines."""
    if rows is None:
        return ""
    kinds = [' class="text prose"' if prose else ' class="text"'] * rows.text_columns
    kinds += [""] * (len(rows.head) - rows.text_columns)
    head = "".join(f"<th{kind}>{_title(text)}</th>" for kind, text in zip(kinds, rows.head, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(text)}</td>' for kind, text in zip(kinds, line, strict=True))}</tr>"
        for line in rows.body
    )
    return f'<div class="card wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _title(text: str) -> str:
    """A column's name, its unit (what stands in brackets at the end) below it."""
    name, bracket, unit = text.partition(" (")
    return f"{escape(name)}<small>{escape(unit.removesuffix(')'))}</small>" if bracket else escape(text)


def details(title: str, text: str) -> str:
    """Text as it is, folded away."""
    return f'<details class="card"><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>'
