"""A claim: what is said, in the head of its scenario; what we measure of it, and what is so, in code."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from scenarios.schema.loader import header

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the page. Cells are text already; the first column is of names, the others of numbers.

    With `data` the table is a data file of that name, which the page links: a row for each cell, whose `parts` have a
    dot between them.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    data: str = ""
    parts: Sequence[str] = ()


Columns = Mapping[str, tuple[str, float, str]]
"""Columns of a table by their heads: a figure's name, a factor, and its format."""


def cells(figures: Figures, columns: Columns) -> list[str]:
    """A row of these columns."""
    return [format(scale * figures[name], form).replace("%", " %") for name, scale, form in columns.values()]


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """Result of a claim: figures by name, which texts and expectations refer to, and the tables to show."""

    figures: Figures
    tables: Sequence[Table]


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected value of a figure, and its tolerance."""

    figure: str
    value: float
    tolerance: float  # in the figure's own unit
    written: str  # the two as the scenario has them
    why: str


@dataclass(frozen=True, slots=True)
class Head:
    """The comment at the top of a claim's scenario."""

    title: str
    claim: str
    said: str
    expected: tuple[Expectation, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim. `brief`, `holds` and `fails` are texts with `{figure:format}` where a measured figure belongs.

    `measure` runs the scenario, as often as it takes.
    """

    number: int
    scenario: str  # its name, as `batchlab run` takes it
    verdict: str
    brief: str
    holds: str
    fails: str
    measure: Callable[[], ClaimResult]

    @property
    def head(self) -> Head:
        return read_head(self.scenario)


@cache
def read_head(scenario: str) -> Head:
    """The parts of a shipped scenario's comment. ValueError where one is missing or cannot be read."""
    lines = header(scenario)
    title = lines[0].removeprefix("# ").partition(": ")[2]
    parts: dict[str, list[str]] = {}
    for line in lines[1:]:
        if opens := re.match(r"# (Claim|Said|Look at|Expect|Try) +(.*)", line):
            parts[opens[1]] = current = [opens[2]]
        elif line.startswith("#  ") and parts:
            current.append(line[1:].strip())
    missing = [name for name in ("Claim", "Said", "Look at", "Expect", "Try") if name not in parts]
    if missing or not title:
        raise ValueError(f"{scenario}: its head lacks {', '.join(missing) or 'a title'}")
    return Head(
        title=title,
        claim=" ".join(parts["Claim"]),
        said=" ".join(parts["Said"]),
        expected=tuple(_expectation(scenario, line) for line in parts["Expect"]),
        commands=tuple(line.partition("  #")[0] for line in parts["Try"]),
    )


def _expectation(scenario: str, line: str) -> Expectation:
    """`- figure = value +- tolerance: why`; the tolerance may be in per cent of the value."""
    read = re.fullmatch(r"- (\w+) = ((-?[\d.]+) \+- ([\d.]+)( %)?): (.+)", line)
    if read is None:
        raise ValueError(f"{scenario}: no expectation: {line!r}")
    value, tolerance = float(read[3]), float(read[4])
    in_unit = abs(value) * tolerance / 100 if read[5] else tolerance
    return Expectation(read[1], value, in_unit, read[2].replace("+-", "±"), read[6])
