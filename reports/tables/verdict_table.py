"""The verdict table as text, and as plain HTML for a notebook: three blocks with a line a policy, nothing random.

Latencies of ten seconds and more put their column into seconds, minutes or hours; where others are far shorter, each
cell carries its own unit, as people say them: 45.2 ms beside 68.7 min. Columns without a value are left out, and so are
those of losses where there was none; a flag is shown always, as "saturated: no" is worth knowing.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import fmean
from types import MappingProxyType
from typing import Any

from reports.tables.terminal import PLAIN, PROSE_WIDTH, Terminal, in_columns
from reports.units import MILLISECONDS, MISSING, column_unit, fitted, intervals, number, tied, time_unit
from reports.verdict.sentences import Own, own_intervals, verdict_words
from reports.verdict.shown_metrics import (
    Block,
    Column,
    Estimate,
    Facts,
    Summaries,
    best,
    blocks_of,
    estimate,
    seeds,
    values,
)
from simulator.metrics.latency import Slo
from simulator.metrics.metric import MS
from simulator.metrics.summary import METRICS, PREDICTION

# Where a real server's metrics lie: the intervals of `prediction` in summary.json, beside the figures of a run.

Run = Mapping[str, Any]


def ends_of(runs: Sequence[Run], key: str) -> tuple[float, float] | None:
    """The ends of a metric's interval, their means over seeds; None where a run has none."""
    found = [(run.get(PREDICTION) or {}).get("metrics", {}).get(key) for run in runs]
    if not found or any(each is None for each in found):
        return None
    return fmean([each["low"] for each in found]), fmean([each["high"] for each in found])


def prediction_note(summaries: Mapping[str, Sequence[Run]]) -> str:
    """What the intervals are, and how the prices of steps were come by; empty where no run has one."""
    entries = {label: runs[0][PREDICTION] for label, runs in summaries.items() if runs and runs[0].get(PREDICTION)}
    if not entries:
        return ""
    percent = ", ".join(dict.fromkeys(f"{100 * entry['coverage']:g} %" for entry in entries.values()))
    whys = dict.fromkeys(entry["why"] for entry in entries.values())
    said = f"On a real server: {percent} of similar real servers fell in this range ({'; '.join(whys)})."
    # One kernel priced too high is so in all runs: what differs between them is the policy, or another setting.
    return f"{said} All runs share most of that error, so their order is more certain." if len(entries) > 1 else said


# The table.

MARK = "*"
MOST_OF_A_LABEL = 60


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as text: the mean, the interval behind it (or nothing) and whether it is the column's best."""

    mean: str
    interval: str = ""
    is_best: bool = False


def cells(summaries: Summaries, column: Column, own: Own = MappingProxyType({})) -> dict[str, Cell]:
    """A column's cells by label: with the same number of decimals, or each with its own unit of time.

    `own` are the intervals within a run that stands alone.
    """
    if column.is_predicted:
        return _ranges(summaries, column)
    if column.flag:
        return {label: Cell(_flag(values(runs, column.key))) for label, runs in summaries.items()}
    column = _in_its_unit(summaries, column)
    found = _estimates(summaries, column, own)
    marked = best(summaries, column)
    if not column.unit and column.key in METRICS and METRICS[column.key].unit == MS:
        made = _signs_aligned({label: _timed_cell(each, label in marked) for label, each in found.items()})
    else:
        places = column.decimals(each.mean for each in found.values())
        spread = intervals([(each.mean, each.low, each.high) for each in found.values()], places)
        made = {
            label: Cell(number(each.mean, places), behind, label in marked)
            for (label, each), behind in zip(found.items(), spread, strict=True)
        }
    if seeds(summaries) < 2 and {made[k].mean for k in marked} & {made[k].mean for k in made if k not in marked}:
        return {label: replace(cell, is_best=False) for label, cell in made.items()}  # better by nothing to be read
    return made


def _ranges(summaries: Summaries, column: Column) -> dict[str, Cell]:
    """Cells with the ends between which a real server's figure lies."""
    found = {label: ends_of(runs, column.key) for label, runs in summaries.items()}
    known = {label: [end * column.scale for end in ends] for label, ends in found.items() if ends is not None}
    places = column.decimals(end for ends in known.values() for end in ends)
    texts = {label: [number(end, places) for end in ends] for label, ends in known.items()}
    wide = max((len(high) for _, high in texts.values()), default=0)
    made = {label: Cell(f"{low} to {high.rjust(wide)}") for label, (low, high) in texts.items()}
    return {label: made.get(label, Cell(MISSING)) for label in summaries}


def _estimates(summaries: Summaries, column: Column, own: Own = MappingProxyType({})) -> dict[str, Estimate]:
    found = {label: estimate(runs, column.key, column.scale) for label, runs in summaries.items()}
    if (inside := own.get(column.key)) is None or not inside.n:
        return found
    low, high = max(inside.low, 0.0) * column.scale, inside.high * column.scale
    return {label: replace(each, low=low, high=high) for label, each in found.items()}


def _in_its_unit(summaries: Summaries, column: Column) -> Column:
    """The column in the unit that suits its latencies; without one where each cell has its own."""
    if column.unit != MS:
        return column
    if column.is_predicted:
        ends = [ends_of(runs, column.key) or () for runs in summaries.values()]
        one = column_unit([end for each in ends for end in each]) or MILLISECONDS
        return replace(column, unit=one.unit, scale=1 / one.milliseconds)
    unit = column_unit([each.mean for each in _estimates(summaries, column).values()])
    return replace(column, unit="") if unit is None else replace(column, unit=unit.unit, scale=1 / unit.milliseconds)


def _timed_cell(found: Estimate, is_best: bool) -> Cell:
    if not math.isfinite(found.mean):
        return Cell(MISSING)
    clock = time_unit(found.mean)
    mean = found.mean / clock.milliseconds
    places = max(2 - math.floor(math.log10(abs(mean))), 0) if mean else 0  # three significant digits
    if found.low is None or found.high is None:
        return Cell(f"{number(mean, places)} {clock.unit}", is_best=is_best)
    ends = (found.low / clock.milliseconds, found.high / clock.milliseconds)
    behind = intervals([(mean, *ends)], places)[0]
    return Cell(number(mean, places), f"{behind} {clock.unit}", is_best)


def _signs_aligned(made: Mapping[str, Cell]) -> dict[str, Cell]:
    """The cells with their ± one below the other."""
    wide = max((len(cell.interval) for cell in made.values()), default=0)
    return {
        label: replace(cell, interval=f"± {cell.interval[2:].rjust(wide - 2)}") if cell.interval[:1] == "±" else cell
        for label, cell in made.items()
    }


def _flag(seen: Sequence[float]) -> str:
    known = [value for value in seen if math.isfinite(value)]
    yes = sum(value > 0.0 for value in known)
    if not known:
        return MISSING
    return ("yes" if yes else "no") if yes in (0, len(known)) else f"{yes} of {len(known)}"


def note(summaries: Summaries, own: Own = MappingProxyType({}), *, paired: bool = True) -> str:
    """The meaning of the marks and of the ±; empty where there is neither."""
    count = seeds(summaries)
    if any(each.n for each in own.values()):
        few = " -: too few requests for that end." if not all(each.is_bounded for each in own.values()) else ""
        return f"Percentiles with the [ends] of their 95 % interval, from this run alone.{few}"
    if count > 1:
        text = f"Mean ± half-width, or [ends], of the 95 % confidence interval over {count} seeds."
        if len(summaries) > 1 and paired:
            text += f" {MARK} best of its column: the paired 95 % interval of its difference to each other excludes 0."
        return text
    if len(summaries) > 1 and paired:
        return f"{MARK} best of its column, with one seed. Other seeds may disagree: --seeds 5 gives intervals."
    return ""


def notes(summaries: Summaries, own: Own = MappingProxyType({}), *, paired: bool = True) -> list[str]:
    """What stands below the blocks: the meaning of the marks, then of a real server's intervals; nothing empty."""
    return [text for text in (note(summaries, own, paired=paired), prediction_note(summaries)) if text]


def verdict_table(
    summaries: Summaries,
    slo: Slo | None = None,
    facts: Mapping[str, Facts] | None = None,
    terminal: Terminal = PLAIN,
    *,
    paired: bool = True,
) -> str:
    """The table, what its marks mean, and the verdict in words; ends with a newline.

    `summaries` has one summary a seed for every label, seeds in the same order. Runs that are not `paired` (other
    requests, or another SLO) are not ranked.
    """
    if not summaries:
        return "nothing to compare\n"
    own = own_intervals(summaries, facts)
    parts = [text for block in blocks_of(summaries) if (text := _block(block, summaries, terminal, own, paired=paired))]
    parts += [
        terminal.paint(wrapped(said, terminal.prose_width), "dim") for said in notes(summaries, own, paired=paired)
    ]
    words = verdict_words(summaries, slo, facts, paired=paired)
    parts.append("\n".join(wrapped(text, terminal.prose_width) for text in words))
    return "\n\n".join(part for part in parts if part) + "\n"


def wrapped(text: str, width: int = PROSE_WIDTH) -> str:
    """Lines of at most `width` characters that part no number from its unit."""
    return textwrap.fill(tied(text), width).replace("\u00a0", " ")


def shown(
    summaries: Summaries, block: Block, own: Own = MappingProxyType({}), *, paired: bool = True
) -> list[tuple[Column, dict[str, Cell]]]:
    """The block's columns that tell something, in the units that suit them, with their cells."""
    pairs: list[tuple[Column, dict[str, Cell]]] = []
    if block.where and not any(run.get(block.where) for runs in summaries.values() for run in runs):
        return pairs
    for column in block.columns:
        if _tells_nothing(summaries, column):
            continue
        head = _in_its_unit(summaries, column)
        found = cells(summaries, head, own)
        unmarked = {label: replace(cell, is_best=False) for label, cell in found.items()}
        pairs.append((head, found if paired else unmarked))
    return pairs


def _tells_nothing(summaries: Summaries, column: Column) -> bool:
    """Return whether no run has a value, or every run has 0 of a loss (rejections, preemptions, padding)."""
    if column.is_predicted:
        return not any(ends_of(runs, column.key) for runs in summaries.values())
    known = [value for runs in summaries.values() for value in values(runs, column.key) if math.isfinite(value)]
    return not known or (column.better < 0 and not column.flag and not any(known))


def _block(block: Block, summaries: Summaries, terminal: Terminal, own: Own, *, paired: bool) -> str:
    columns = shown(summaries, block, own, paired=paired)
    if not columns:
        return ""
    labels = list(summaries)
    left = [block.title, "", *(fitted(label, MOST_OF_A_LABEL) for label in labels)]
    wide = max(len(text) for text in left)
    title, *others = (text.ljust(wide) for text in left)
    lines = [[terminal.paint(title, "title"), *others]]
    for column, by_label in columns:
        found = [by_label[label] for label in labels]
        texts = _texts(found)
        wide = max(len(column.title), len(column.unit), len(texts[0]) - 1)
        head = [terminal.paint(f"{column.title.rjust(wide)} ", "title"), f"{column.unit.rjust(wide)} "]
        painted = [
            _painted(text.rjust(wide + 1), cell, column, terminal) for text, cell in zip(texts, found, strict=True)
        ]
        lines.append([head[0], terminal.paint(head[1], "dim"), *painted])
    return in_columns(lines, terminal.width)


def _painted(text: str, cell: Cell, column: Column, terminal: Terminal) -> str:
    if cell.is_best:
        return terminal.paint(text, "best")
    return terminal.paint(text, "warning") if column.flag and cell.mean not in ("no", MISSING) else text


def _texts(column: Sequence[Cell]) -> list[str]:
    """The cells as text of equal width: means aligned right, intervals left, one place for the mark at the end."""
    mean = max(len(cell.mean) for cell in column)
    wide = max(len(cell.interval) for cell in column)
    texts = []
    for cell in column:
        text = cell.mean.rjust(mean)
        if wide:
            sign = "± " if cell.interval.startswith("± ") else ""
            text += f" {sign}{cell.interval.removeprefix(sign).rjust(wide - len(sign))}"
        texts.append(text + (MARK if cell.is_best else " "))
    return texts


def html_table(title: str, summaries: Summaries, foot: str = "") -> str:
    """A title, the blocks of the verdict table, and what its marks mean."""
    blocks = "".join(_html_block(block, summaries) for block in blocks_of(summaries))
    said = "".join(f"<p><small>{escape(text)}</small></p>" for text in (*notes(summaries), foot) if text)
    return f"<div><b>{escape(title)}</b>{blocks}{said}</div>"


def _html_block(block: Block, summaries: Summaries) -> str:
    columns = shown(summaries, block)
    if not columns:
        return ""
    head = "".join(f"<th>{escape(column.title)}<br><small>{escape(column.unit)}</small></th>" for column, _ in columns)
    rows = "".join(
        f"<tr><th>{escape(label)}</th>{''.join(_html_cell(cells[label]) for _, cells in columns)}</tr>"
        for label in summaries
    )
    return f"<table><thead><tr><th>{escape(block.title)}</th>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _html_cell(cell: Cell) -> str:
    text = f"{cell.mean} {cell.interval}" if cell.interval else cell.mean
    return f"<td><b>{escape(text)} *</b></td>" if cell.is_best else f"<td>{escape(text)}</td>"
