"""A log whose columns have names of their own: the option `columns` says which native column each one is."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scenarios.traces.format import FileKind
from scenarios.traces.formats.native import OPTIONAL, REQUIRED, TOKEN_IDS
from scenarios.traces.lines import Line
from scenarios.traces.rows import RowError, json_object
from simulator.errors import InputError, did_you_mean

_NATIVE = (*REQUIRED, *OPTIONAL, *TOKEN_IDS.values())


def check_columns(columns: Mapping[str, str]) -> None:
    """Raise InputError for a name that is not a native column, and for one column of the file in two places."""
    for native in columns:
        if native not in _NATIVE:
            hint = f"{did_you_mean(native, _NATIVE)}native columns: {', '.join(_NATIVE)}"
            raise InputError(f"columns: {native!a} is not a native column", hint=hint)
    theirs = list(columns.values())
    for name in theirs:
        if theirs.count(name) > 1:
            raise InputError(f"columns: {name!a} is given for two native columns", hint="one name for each")


def renamed(names: Sequence[str], columns: Mapping[str, str], kind: FileKind, file: str, line: int) -> tuple[str, ...]:
    """The names of a file as native ones. A native name that the file uses for something else is taken off it."""
    for native, name in columns.items():
        if name not in names and (kind == "csv" or native in REQUIRED):
            seen = ", ".join(ascii(each)[1:-1] for each in names[:12])
            hint = f"{did_you_mean(name, names)}seen: {seen}"
            raise InputError(
                f"columns: there is no {name!a}, which should be {native}", file=file, line=line, hint=hint
            )
    natives = {name: native for native, name in columns.items()}
    return tuple(natives.get(name, "" if name in columns else name) for name in names)


def renamed_rows(rows: Iterable[Line], columns: Mapping[str, str]) -> Iterator[Line]:
    """The lines of JSON Lines with native keys; what is no JSON object is left as it is, for the parser to say so."""
    for line, text in rows:
        try:
            fields = json_object(text)
        except RowError:
            yield line, text
            continue
        kept = {key: value for key, value in fields.items() if key not in columns}
        yield line, json.dumps(kept | {native: fields[name] for native, name in columns.items() if name in fields})
