"""The objects of a JSON text that is no JSON Lines file, one at a time: those of an array, or objects over lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scenarios.traces.lines import Line

_MARKS = re.compile(r'[^"\\]*("|\\.?)')  # inside a string: up to its end, or an escape
_BRACKETS = re.compile(r'[^"{}]*(["{}])')  # outside: up to a string or a brace


def array_items(lines: Iterator[Line]) -> Iterator[Line]:
    """The text of each outermost object with the number of the line on which it begins.

    What stands between them (brackets, commas) is passed over; what is inside one is checked when it is parsed. An
    object that is cut off comes as it is. Only one object is held at a time.
    """
    depth, in_string, began = 0, False, 0
    pieces: list[str] = []
    for number, text in lines:
        start = place = 0
        if depth:
            pieces.append("\n")
        while match := (_MARKS if in_string else _BRACKETS).match(text, place):
            place = match.end()
            mark = match.group(1)
            if mark == '"':
                in_string = not in_string and depth > 0
            elif mark == "{":
                if not depth:
                    began, start = number, place - 1
                depth += 1
            elif mark == "}" and depth:
                depth -= 1
                if not depth:
                    pieces.append(text[start:place])
                    yield began, "".join(pieces)
                    pieces.clear()
        if depth:
            pieces.append(text[start:])
    if depth:
        yield began, "".join(pieces)
