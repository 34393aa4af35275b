"""Find the format of a trace, by what is in it and never by its name; and the sources of public traces.

CSV is decided by the header (exact names first, then without regard to case), JSON Lines by the keys of the first
object, anything else by how its text begins, a folder by the names of its files. What is not recognised ends in an
InputError that says what was seen.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from scenarios.traces.format import FileKind, Head, Line, OpenTrace, Signature, Source, TraceFormat
from scenarios.traces.formats import find_format, trace_formats
from scenarios.traces.formats.native import REQUIRED
from scenarios.traces.options import TraceOptions, renamed, renamed_rows
from scenarios.traces.rows import RowError, json_object, split_csv, tokens, tokens_or_one
from simulator.errors import InputError

# The sources of public traces: none is shipped, each is fetched from its source.


def public_traces() -> tuple[tuple[str, Source], ...]:
    """Each public trace with the name of its format, in the order of the formats."""
    return tuple((name, source) for name, each in trace_formats().items() for source in each.sources)


def where_from() -> str:
    """A text for a person: each public trace that can be read, its address, licence and checksum."""
    lines = [
        "Public traces that batchlab reads without conversion, plain or gzipped. None is shipped: fetch a file from",
        "its address, for instance with curl -LO. Checksums are of the plain files.",
    ]
    for name, source in public_traces():
        lines += [
            "",
            source.file,
            f"  what      {source.what}",
            f"  address   {source.address}",
            f"  licence   {source.licence}" + (f"; cite {source.cite}" if source.cite else ""),
            f"  format    {name}" + (f", {source.rows} rows" if source.rows else ""),
        ]
        if source.sha256 is not None:
            lines.append(f"  sha256    {source.sha256}")
    return "\n".join(lines) + "\n"


def public_source_hint(file: str) -> str | None:
    """Return how to get a missing file that is called like a public trace, gzipped or not; None for any other name."""
    wanted = _plain(file)
    for _, source in public_traces():
        if wanted in (_plain(source.file), f"mooncake{_plain(source.file)}"):
            return (
                f"{source.file} is public, not shipped ({source.licence}): curl -LO {source.address}"
                " (batchlab trace sources lists them all)"
            )
    return None


def _plain(name: str) -> str:
    """A name without `.gz`, case and marks between its words."""
    return re.sub(r"[\W_]+", "", name.casefold().removesuffix(".gz"))


SAMPLE_LINES = 1000
"""The lines that a format may look at before it says how the file is read."""

_BEGINNING_LINES, _BEGINNING_CHARACTERS = 60, 100_000  # what `TraceFormat.begins` is matched against

Marks = Mapping[str, tuple[Signature, ...]]  # signatures by the name of their format
Refuse = Callable[..., InputError]  # makes the error of a message, and perhaps a hint, at the file's first line


@dataclass(frozen=True, slots=True)
class Detected:
    """A file of a known format, open at its first row."""

    format: str
    kind: FileKind | Literal["folder"]
    trace: OpenTrace
    notes: tuple[str, ...]


def detect(lines: Iterator[Line], options: TraceOptions, file: str) -> Detected:
    """Look at the first lines and open the file. Raises InputError for all that cannot be read."""
    sample = list(islice(lines, SAMPLE_LINES))
    if not sample:
        raise InputError(
            "the file is empty", file=file, hint="a trace begins with a header, or has one JSON object on each line"
        )
    number, first = sample[0]
    refuse = partial(InputError, file=file, line=number)
    if not _is_text(first):
        raise refuse("the first line is not UTF-8 text")
    kind = _kind(first, sample, options)
    names = () if kind == "text" else (_keys if kind == "jsonl" else _header)(first, refuse)
    rows: Iterator[Line] = chain(sample[1:] if kind == "csv" else sample, lines)
    if options.columns:
        names = renamed(names, options.columns, kind, file, number)
        rows = rows if kind == "csv" else renamed_rows(rows, options.columns)
        options = replace(options, format="native")
    found = _find(kind, names, sample, options, refuse)
    if options.time_unit is not None and options.time_unit not in found.units and not options.columns:
        what = f"time_unit cannot be given for the format {found.name}: {found.times}"
        raise InputError(what, file=file, hint="leave it out")
    head = Head(
        file=file,
        kind=kind,
        names=names,
        positions=_positions(names, found.columns, refuse) if kind == "csv" else {},
        sample=sample,
        whole=len(sample) < SAMPLE_LINES,
        rows=rows,
        time_unit=options.time_unit,
        asked=options.format != "auto",
        answer=tokens_or_one if options.zero_output == "one" else tokens,
        seed=options.seed,
    )
    trace = found.open(head)
    unread = _unread(names, found.columns) if kind == "csv" and found.names_unread else None
    return Detected(trace.format or found.name, kind, trace, tuple(note for note in (unread, trace.note) if note))


def in_folder(path: Path, options: TraceOptions) -> Detected | None:
    """A folder whose files are a trace of a known format, open at its first row; None for any other folder."""
    names = sorted(entry.name for entry in path.iterdir())
    for each in trace_formats().values():
        if each.in_folder is not None and any(map(each.in_folder.fullmatch, names)):
            head = Head(str(path), "text", (), {}, (), True, iter(()), options.time_unit, False, seed=options.seed)
            trace = each.open(head)
            return Detected(each.name, "folder", trace, tuple(note for note in (trace.note,) if note))
    return None


def _kind(first: str, sample: Sequence[Line], options: TraceOptions) -> FileKind:
    """Return the file's kind. An object that goes on over lines is a text, where a format is known by such a text."""
    if ":" in options.format and _beginning_so(sample, options.format):  # one's own format may read any text
        return "text"
    if first.lstrip()[0] == "{":
        try:
            json_object(first)
        except RowError:
            return "text" if _beginning_so(sample, options.format) else "jsonl"
        return "jsonl"
    return "text" if first.lstrip()[0] == "[" else "csv"


def _find(
    kind: FileKind, names: tuple[str, ...], sample: Sequence[Line], options: TraceOptions, refuse: Refuse
) -> TraceFormat:
    """The one format that the beginning of a file fits."""
    _, first = sample[0]
    marks = _marks(kind, options.format)
    if kind != "text" and not marks:
        asked, seen = find_format(options.format), "a JSON object" if kind == "jsonl" else "no JSON object"
        wanted = " or ".join(
            name for name, marked in (("CSV", asked.csv), ("JSON Lines", asked.json), ("JSON", asked.begins)) if marked
        )
        what = f"format {options.format} is {wanted}, but the first line is {seen}"
        raise refuse(what, hint=f"it begins {shown(first)}")
    found = _matching(names, marks)
    if not found and kind == "csv":
        folded = {name: tuple(each.folded() for each in signatures) for name, signatures in marks.items()}
        found = _matching([name.casefold() for name in names], folded)
    found = found or _beginning_so(sample, options.format)
    if not found:
        raise _unknown(kind, names, first, marks, refuse)
    if len(found) > 1:
        columns = "columns" if kind == "csv" else "keys"
        hint = f"{_seen(columns, names)}; give format (--format): {', '.join(found)}"
        raise refuse(f"ambiguous: the {columns} fit {' and '.join(found)}", hint=hint)
    return find_format(found[0])


def _marks(kind: FileKind, given: str) -> Marks:
    """The signatures that a file of this kind may fit: those of every format, or of the one that was given."""
    if kind == "text":
        return {}
    if given == "auto":
        chosen = {name: each.csv if kind == "csv" else each.json for name, each in trace_formats().items()}
    else:
        each = find_format(given)
        chosen = {given: each.csv if kind == "csv" else each.json_if_asked or each.json}
    return {name: signatures for name, signatures in chosen.items() if signatures}


def _matching(names: Sequence[str], marks: Marks) -> list[str]:
    """Formats with a signature that fits; one that demands strictly more than another wins over it."""
    fits = [(name, each) for name, signatures in marks.items() for each in signatures if each.fits(names)]
    best = [name for name, each in fits if not any(set(each.has) < set(other.has) for _, other in fits)]
    return list(dict.fromkeys(best))


def _beginning_so(sample: Sequence[Line], given: str) -> list[str]:
    """Formats that are known by how their text begins: the one given, or any."""
    text = "\n".join(text for _, text in sample[:_BEGINNING_LINES])[:_BEGINNING_CHARACTERS]
    formats = trace_formats() if given == "auto" else {given: find_format(given)}
    return [name for name, each in formats.items() if each.begins is not None and each.begins.match(text)]


def _keys(first: str, refuse: Refuse) -> tuple[str, ...]:
    try:
        return tuple(json_object(first))
    except RowError as error:
        what = f"the first line does not hold a whole JSON object: {shown(first)}"
        raise refuse(what, hint="JSON Lines has one whole object on each line") from error


def _header(first: str, refuse: Refuse) -> tuple[str, ...]:
    try:
        return tuple(name.strip() for name in split_csv(first))
    except RowError as error:
        raise refuse(f"the header cannot be read: {error.detail}") from error


def _positions(header: Sequence[str], wanted: Sequence[str], refuse: Refuse) -> dict[str, int]:
    """Return the place of each wanted column: by its exact name, else by its name without regard to case."""
    positions = {}
    for name in wanted:
        places = [i for i, column in enumerate(header) if column == name]
        places = places or [i for i, column in enumerate(header) if column.casefold() == name.casefold()]
        if len(places) > 1:
            hint = f"at places {', '.join(str(place + 1) for place in places)}; keep one"
            raise refuse(f"the column {name} occurs {len(places)} times in the header", hint=hint)
        if places:
            positions[name] = places[0]
    return positions


def _unread(header: Sequence[str], wanted: Sequence[str]) -> str | None:
    known = {name.casefold() for name in wanted}
    extra = [name for name in header if name.casefold() not in known and name]
    return f"columns not read: {', '.join(extra)}" if extra else None


def _is_text(text: str) -> bool:
    return not any("\udc80" <= character <= "\udcff" for character in text)


def _unknown(kind: FileKind, names: Sequence[str], first: str, marks: Marks, refuse: Refuse) -> InputError:
    """The file fits no format. `marks` are the signatures that it was held against, by format."""
    if kind == "text":
        return refuse("this is a JSON array, not JSON Lines", hint="write one object a line, without [ and ]")
    if kind == "csv" and len(names) == 1 and any(mark in first for mark in ";\t|"):
        return refuse(f"the columns are not separated by commas: {shown(first)}", hint="use commas")
    if kind == "csv" and any(_is_number(name) for name in names):
        hint = f"begin with the names of the columns, such as {','.join(REQUIRED)}"
        return refuse(f"there is no header: the first line has values, {shown(first)}", hint=hint)
    return _unlike("columns" if kind == "csv" else "keys", names, marks, refuse)


def shown(text: str) -> str:
    """The beginning of a line, in ASCII."""
    return ascii(text[:60]) + ("..." if len(text) > 60 else "")


def _unlike(what: str, names: Sequence[str], marks: Marks, refuse: Refuse) -> InputError:
    """The names fit no signature: say what the nearest lacks."""
    have = frozenset(name.casefold() for name in names)
    known = [(name, each) for name in marks for each in marks[name]]

    def likeness(pair: tuple[str, Signature]) -> float:
        return sum(name.casefold() in have for name in pair[1].has) / len(pair[1].has)

    nearest, signature = max(known, key=likeness)
    missing = [name for name in signature.has if name.casefold() not in have]
    lacks = ", ".join(missing)
    if len(marks) == 1:
        return refuse(f"not a trace of the format {nearest}: no {lacks}", hint=_seen(what, names))
    near = f"nearest is {nearest}, which lacks {lacks}; " if len(missing) < len(signature.has) else ""
    options = "give format (--format), or columns (--columns), and time_unit (--time-unit) for bare numbers"
    hint = f"{_seen(what, names)}; {near}formats read: {', '.join(trace_formats())}; {options}"
    return refuse("unknown trace format", hint=hint)


def _seen(what: str, names: Sequence[str]) -> str:
    listed = ", ".join(ascii(name)[1:-1] for name in names[:12])
    return f"{what} seen: {listed}" + (", ..." if len(names) > 12 else "")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
