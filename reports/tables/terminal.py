"""Width and colours of text: as the terminal allows, and always the same where stdout is no terminal.

Text that is piped or written to a file must not depend on the window it was started from, so there the width is fixed
and nothing is coloured. On a terminal the width is that of the window (or COLUMNS), and colour is off where NO_COLOR
is set (no-color.org) or TERM is `dumb`.
"""

import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

PROSE_WIDTH = 100  # lines of prose are never longer than this
NARROWEST = 40  # a window that says it has fewer columns is not believed
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_CODES = {"title": "1", "dim": "2", "best": "1;32", "warning": "33"}


@dataclass(frozen=True, slots=True)
class Terminal:
    """The width of lines in characters, and whether ANSI colours are understood."""

    width: int = 130
    colour: bool = False

    @property
    def prose_width(self) -> int:
        """The width of lines of prose."""
        return min(self.width, PROSE_WIDTH)

    def paint(self, text: str, kind: str) -> str:
        """The text in the colour of `kind`: title, dim, best or warning."""
        inside = text.strip()
        if not self.colour or not inside:
            return text
        before, _, after = text.partition(inside)
        return f"{before}\x1b[{_CODES[kind]}m{inside}\x1b[0m{after}"

    def folded(self, line: str, indent: int) -> str:
        """A line folded to the window's width behind its first `indent` characters; unchanged where there is none."""
        if self == PLAIN or len(line) <= self.width:
            return line
        rest = " ".join(line[indent:].split())
        return textwrap.fill(rest, self.width, initial_indent=line[:indent], subsequent_indent=" " * indent)


PLAIN = Terminal()


def terminal_of(stream: TextIO) -> Terminal:
    """The terminal that the stream is, as wide as its window, or `PLAIN`."""
    if not stream.isatty():
        return PLAIN
    columns = shutil.get_terminal_size((PLAIN.width, 24)).columns
    return Terminal(max(columns, NARROWEST), wants_colour(stream))


def wants_colour(stream: TextIO) -> bool:
    """Return whether text to the stream may have colours."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def in_columns(cells: Sequence[Sequence[str]], width: int, *, keep: int = 1) -> str:
    """Columns of equally long texts side by side, two spaces apart.

    Where they are wider than `width`, those that do not fit follow below, after the first `keep` columns again. A row
    without text is left out.
    """
    first, rest = list(cells[:keep]), list(cells[keep:])
    groups: list[list[Sequence[str]]] = [list(first)]
    for column in rest:
        if len(groups[-1]) > keep and _width([*groups[-1], column]) > width:
            groups.append(list(first))
        groups[-1].append(column)
    texts = [("  ".join(row).rstrip() for row in zip(*columns, strict=True)) for columns in groups]
    return "\n\n".join("\n".join(filter(None, rows)) for rows in texts)


def aligned(rows: Sequence[Sequence[str]], text_columns: int, width: int = PLAIN.width) -> str:
    """Rows of a table as lines: the first `text_columns` to the left, numbers to the right."""
    columns = []
    for index, cells in enumerate(zip(*rows, strict=True)):
        most = max(map(visible, cells))
        columns.append([_padded(cell, most, left=index < text_columns) for cell in cells])
    return in_columns(columns, width, keep=max(text_columns, 1))


def visible(text: str) -> int:
    """The number of characters that show."""
    return len(_ESCAPE.sub("", text))


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(visible(column[0]) for column in columns) + 2 * (len(columns) - 1)


def _padded(text: str, width: int, *, left: bool) -> str:
    space = " " * (width - visible(text))
    return text + space if left else space + text
