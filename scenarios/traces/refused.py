"""The error for a trace file that is not read: what is in it, which format is nearest, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scenarios.traces.format import FileKind, Signature
from scenarios.traces.formats import trace_formats
from scenarios.traces.formats.native import REQUIRED
from simulator.errors import InputError


def ambiguous(kind: FileKind, names: Sequence[str], found: Sequence[str], file: str, line: int) -> InputError:
    """The file fits several formats."""
    what = "columns" if kind == "csv" else "keys"
    return InputError(
        f"ambiguous: the {what} fit {' and '.join(found)}",
        file=file,
        line=line,
        hint=f"{_seen(what, names)}; give format (--format): {', '.join(found)}",
    )


def unknown(
    kind: FileKind,
    names: Sequence[str],
    first: str,
    marks: Mapping[str, Sequence[Signature]],
    file: str,
    line: int,
) -> InputError:
    """The file fits no format. `marks` are the signatures that it was held against, by format."""
    if kind == "text":
        hint = "write one object a line, without [ and ]"
        return InputError("this is a JSON array, not JSON Lines", file=file, line=line, hint=hint)
    if kind == "csv" and len(names) == 1 and any(mark in first for mark in ";\t|"):
        return InputError(
            f"the columns are not separated by commas: {shown(first)}", file=file, line=line, hint="use commas"
        )
    if kind == "csv" and any(_is_number(name) for name in names):
        return InputError(
            f"there is no header: the first line has values, {shown(first)}",
            file=file,
            line=line,
            hint=f"begin with the names of the columns, such as {','.join(REQUIRED)}",
        )
    return _unlike("columns" if kind == "csv" else "keys", names, marks, file, line)


def shown(text: str) -> str:
    """The beginning of a line, in ASCII."""
    return ascii(text[:60]) + ("..." if len(text) > 60 else "")


def _unlike(
    what: str, names: Sequence[str], marks: Mapping[str, Sequence[Signature]], file: str, line: int
) -> InputError:
    """The names fit no signature: say what the nearest lacks."""
    have = frozenset(name.casefold() for name in names)
    known = [(name, each) for name in marks for each in marks[name]]

    def likeness(pair: tuple[str, Signature]) -> float:
        return sum(name.casefold() in have for name in pair[1].has) / len(pair[1].has)

    nearest, signature = max(known, key=likeness)
    missing = [name for name in signature.has if name.casefold() not in have]
    lacks = ", ".join(missing)
    if len(marks) == 1:
        return InputError(
            f"not a trace of the format {nearest}: no {lacks}", file=file, line=line, hint=_seen(what, names)
        )
    near = f"nearest is {nearest}, which lacks {lacks}; " if len(missing) < len(signature.has) else ""
    options = "give format (--format), or columns (--columns), and time_unit (--time-unit) for bare numbers"
    return InputError(
        "unknown trace format",
        file=file,
        line=line,
        hint=f"{_seen(what, names)}; {near}formats read: {', '.join(trace_formats())}; {options}",
    )


def _seen(what: str, names: Sequence[str]) -> str:
    listed = ", ".join(ascii(name)[1:-1] for name in names[:12])
    return f"{what} seen: {listed}" + (", ..." if len(names) > 12 else "")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
