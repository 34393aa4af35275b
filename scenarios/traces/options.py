"""The options of reading a trace."""

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scenarios.traces.format import UNIT_NS, FileKind, Line, TimeUnit
from scenarios.traces.formats import trace_formats
from scenarios.traces.formats.native import OPTIONAL, REQUIRED, TOKEN_IDS
from scenarios.traces.rows import RowError, json_object
from simulator.errors import InputError, did_you_mean
from simulator.parameters import CLASS_PATTERN

# A log whose columns have names of their own: the option `columns` says which native column each one is.

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


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The part of a trace to read, and the changes to it on the way.

    `start_s`, `duration_s` and `jitter_s` are seconds of the trace itself; `rate_scale` then divides every time, so 2.0
    is twice the rate. The window counts from the first usable row of the file (from 0 in a trace whose times count from
    the start of its run); `limit` counts the requests kept. `jitter_s` adds a uniform draw from [0, jitter_s) to each
    arrival, from a stream of its own under `seed`. `strict` makes the first bad row an error; otherwise bad rows are
    skipped and counted. `time_unit` is for formats whose stamps are bare numbers. `max_tokens` is the cap of rows that
    bring none (default: the largest output kept, which stands for the server's cap).

    `sample` keeps a request with this probability, a session as a whole, under `seed`. `loop` replays the part so many
    times, each after the one before: a copy begins after `duration_s`, or where the next request would be at the mean
    rate; its requests and sessions are named after it (`17#2`), and their content is the same. `copies` lays the part
    over itself (`scenarios.traces.arrange`): other clients (`17@2`) with contents of their own, each copy shifted by a
    draw below `shift_s` seconds of the trace, or anywhere in the part. `zero_output` says what
    becomes of answers without a token, mostly failed requests: `skip` sets the row aside, `one` makes it a prompt whose
    computation yields the first token. `columns` reads a log of any other layout as a native trace: it maps native
    columns to those of the file, and `time_unit` is then that of arrival_time_s. `input_scale` and `output_scale`
    multiply lengths, rounded to whole tokens. `image_tokens` is the size of images that a trace only counts; without it
    they are text.

    Raises InputError for a value outside its range.
    """

    format: str = "auto"
    rate_scale: float = 1.0
    start_s: float = 0.0
    duration_s: float | None = None
    limit: int | None = None
    jitter_s: float = 0.0
    seed: int = 0
    strict: bool = False
    time_unit: TimeUnit | None = None
    input_scale: float = 1.0
    output_scale: float = 1.0
    max_tokens: int | None = None
    sample: float = 1.0
    loop: int = 1
    copies: float = 1.0
    shift_s: float | None = None
    zero_output: Literal["skip", "one"] = "skip"
    columns: Mapping[str, str] | None = None
    image_tokens: int | None = None

    def __post_init__(self) -> None:
        own = re.match(CLASS_PATTERN, self.format)
        if self.format != "auto" and not own and self.format not in trace_formats():
            raise _bad_format(self.format)
        if self.time_unit is not None and self.time_unit not in UNIT_NS:
            raise InputError(f"time_unit: {self.time_unit!r} is not a unit of time", hint="allowed: s, ms, us, ns")
        for name in ("rate_scale", "input_scale", "output_scale", "duration_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name}: {value} is not above 0")
        if not (math.isfinite(self.copies) and self.copies >= 1):
            raise InputError(f"copies: {self.copies} is below 1", hint="sample: 0.5 keeps half of the requests")
        for name in ("start_s", "jitter_s", "shift_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}: {value} is not 0 or above")
        for name in ("limit", "max_tokens", "loop"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: {value} is below 1")
        if not 0 < self.sample <= 1:
            raise InputError(f"sample: {self.sample} is not above 0 and at most 1")
        if self.zero_output not in ("skip", "one"):
            raise InputError(f"zero_output: {self.zero_output!r} is unknown", hint="allowed: skip, one")
        if self.columns is not None:
            if self.format not in ("auto", "native"):
                raise InputError(f"columns: they are for native traces, not for the format {self.format}")
            check_columns(self.columns)
        if self.seed < 0:
            raise InputError(f"seed: {self.seed} is below 0")

    @property
    def leaves_out(self) -> bool:
        """Return whether usable rows may be left out."""
        return self.start_s > 0 or self.duration_s is not None or self.limit is not None or self.sample < 1

    @property
    def arranges(self) -> bool:
        """Return whether requests are moved or scaled, not only chosen."""
        scales = (self.rate_scale, self.input_scale, self.output_scale)
        return (
            self.jitter_s > 0
            or max(self.loop, self.copies) > 1
            or self.max_tokens is not None
            or scales != (1.0, 1.0, 1.0)
        )


def _bad_format(name: str) -> InputError:
    words = ("auto", *trace_formats())
    allowed = ", ".join(words)
    near = difflib.get_close_matches(name.casefold(), words, n=1)
    hint = f"allowed: {allowed}" + (f"; did you mean {near[0]}?" if near else "")
    return InputError(f"format: unknown trace format {name!r}", hint=hint)
