"""The verdict table as a piece of HTML for a notebook: no style sheet, every text escaped."""

from __future__ import annotations

from html import escape

from reports.tables.verdict_table import Cell, note, shown
from reports.verdict.shown_metrics import BLOCKS, Block, Summaries


def html_table(title: str, summaries: Summaries, foot: str = "") -> str:
    """A title, the blocks of the verdict table, and what its marks mean."""
    blocks = "".join(_block(block, summaries) for block in BLOCKS)
    notes = "".join(f"<p><small>{escape(text)}</small></p>" for text in (note(summaries), foot) if text)
    return f"<div><b>{escape(title)}</b>{blocks}{notes}</div>"


def _block(block: Block, summaries: Summaries) -> str:
    columns = shown(summaries, block)
    if not columns:
        return ""
    head = "".join(f"<th>{escape(column.title)}<br><small>{escape(column.unit)}</small></th>" for column, _ in columns)
    rows = "".join(
        f"<tr><th>{escape(label)}</th>{''.join(_cell(cells[label]) for _, cells in columns)}</tr>"
        for label in summaries
    )
    return f"<table><thead><tr><th>{escape(block.title)}</th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(cell: Cell) -> str:
    text = f"{cell.mean} {cell.interval}" if cell.interval else cell.mean
    return f"<td><b>{escape(text)} *</b></td>" if cell.is_best else f"<td>{escape(text)}</td>"
