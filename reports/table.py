"""The verdict table as plain text: three blocks, one line a policy in each, units in the header, nothing random."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reports.columns import BLOCKS, Block, Column, Summaries
from reports.compare import best, estimate, seeds, values
from reports.judged import Facts
from reports.units import MISSING, decimals, intervals, number, one_line, tied
from reports.verdict import verdict_words
from simulator.metrics.slo import Slo

MARK = "*"
WIDTH = 100  # of the lines of prose


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as text: the mean, the interval behind it (or nothing) and whether it is the column's best."""

    mean: str
    interval: str = ""
    is_best: bool = False


def cells(summaries: Summaries, column: Column) -> dict[str, Cell]:
    """A column's cells by label, all with the same number of decimals."""
    if column.flag:
        return {label: Cell(_flag(values(runs, column.key))) for label, runs in summaries.items()}
    found = {label: estimate(runs, column.key, column.scale) for label, runs in summaries.items()}
    places = column.places
    if places is None:
        places = decimals((each.mean for each in found.values()), column.most)
    marked = best(summaries, column)
    spread = intervals([(each.mean, each.low, each.high) for each in found.values()], places)
    made = {
        label: Cell(number(each.mean, places), behind, label in marked)
        for (label, each), behind in zip(found.items(), spread, strict=True)
    }
    if seeds(summaries) < 2 and {made[k].mean for k in marked} & {made[k].mean for k in made if k not in marked}:
        return {label: replace(cell, is_best=False) for label, cell in made.items()}  # better by nothing to be read
    return made


def _flag(seen: Sequence[float]) -> str:
    known = [value for value in seen if math.isfinite(value)]
    yes = sum(value > 0.0 for value in known)
    if not known:
        return MISSING
    return ("yes" if yes else "no") if yes in (0, len(known)) else f"{yes} of {len(known)}"


def note(summaries: Summaries) -> str:
    """What the marks and the ± mean; empty where there is neither."""
    count = seeds(summaries)
    if count > 1:
        text = f"Mean ± half-width, or [ends], of the 95 % confidence interval over {count} seeds."
        if len(summaries) > 1:
            text += f" {MARK} best of its column: the paired 95 % interval of its difference to each other excludes 0."
        return text
    if len(summaries) > 1:
        return f"{MARK} best of its column, in one run each: one seed is no evidence that others would agree."
    return ""


def verdict_table(summaries: Summaries, slo: Slo | None = None, facts: Mapping[str, Facts] | None = None) -> str:
    """The table, what its marks mean, and the verdict in words; ends with a newline.

    `summaries` has one summary a seed for every label, seeds in the same order. Columns that no summary has a value
    for are left out.
    """
    if not summaries:
        return "nothing to compare\n"
    parts = [text for block in BLOCKS if (text := _block(block, summaries))]
    parts.append(wrapped(note(summaries)))
    parts.append("\n".join(wrapped(text) for text in verdict_words(summaries, slo, facts)))
    return "\n\n".join(part for part in parts if part) + "\n"


def wrapped(text: str) -> str:
    """Lines of at most WIDTH characters that part no number from its unit."""
    return textwrap.fill(tied(text), WIDTH).replace("\u00a0", " ")


def shown(summaries: Summaries, block: Block) -> list[tuple[Column, dict[str, Cell]]]:
    """The block's columns that have a value for somebody, with their cells."""
    columns = [(column, cells(summaries, column)) for column in block.columns]
    return [pair for pair in columns if any(cell.mean != MISSING for cell in pair[1].values())]


def _block(block: Block, summaries: Summaries) -> str:
    columns = shown(summaries, block)
    if not columns:
        return ""
    labels = list(summaries)
    left = [block.title, "", *(one_line(label, 60) for label in labels)]
    wide = max(len(text) for text in left)
    lines = [text.ljust(wide) for text in left]
    for column, by_label in columns:
        texts = _texts([by_label[label] for label in labels])
        title, unit = column.title, column.unit
        wide = max(len(title), len(unit), len(texts[0]) - 1)
        texts = [f"{title.rjust(wide)} ", f"{unit.rjust(wide)} ", *(text.rjust(wide + 1) for text in texts)]
        lines = [f"{line}  {text}" for line, text in zip(lines, texts, strict=True)]
    return "\n".join(line.rstrip() for line in lines)


def _texts(column: Sequence[Cell]) -> list[str]:
    """The cells as text of equal width: means aligned right, intervals too, one place for the mark at the end."""
    mean = max(len(cell.mean) for cell in column)
    wide = max(len(cell.interval) for cell in column)
    texts = []
    for cell in column:
        text = cell.mean.rjust(mean)
        if wide:
            text += f" {cell.interval.rjust(wide)}"
        texts.append(text + (MARK if cell.is_best else " "))
    return texts
