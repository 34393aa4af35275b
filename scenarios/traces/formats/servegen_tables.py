"""ServeGen's tables of clients: what a trace is drawn from, rather than a trace.

A folder holds two files for each client N. `chunk-N-trace.csv` has no header, but a row for each window of time: its
start in seconds, the rate, the CV, Gamma or Weibull (empty: no arrivals), shape and scale. `chunk-N-dataset.json` maps
starts of windows to distributions of input_tokens and output_tokens, each a Python dict of length: probability in a
string. One client's table can be read alone, with its dataset beside it.

Arrivals are a renewal process of the window's family and shape on a clock that runs at the window's rate, so that the
expected number is the integral of the rate; ServeGen itself stretches each window to an exact number. Input and output
are drawn independently, each from a stream of its own; ServeGen draws both from one number. The client is the class.
"""

from __future__ import annotations

import ast
import heapq
import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.traces.format import Head, OpenTrace, TraceFormat, numbered_lines
from scenarios.traces.rows import MOST_TOKENS, Row, RowError, csv_fields, real
from simulator.errors import InputError

if TYPE_CHECKING:
    import numpy as np

_CHUNK = re.compile(r"chunk-(\w+)-trace\.csv")
_FAMILIES = ("Gamma", "Weibull")
_LAST_WINDOW_S = 600.0  # how long the last window lasts where there is but one
_DRAWN_AT_ONCE = 256
_MOST_A_SECOND = 1e6

Draw = tuple[int, float, int, int, str]  # row of its table, arrival, input, output, client


@dataclass(frozen=True, slots=True)
class _Window:
    line: int
    start_s: float
    end_s: float
    rate: float
    family: str
    shape: float


@dataclass(frozen=True, slots=True)
class _Lengths:
    """A distribution of lengths, as ascending cumulative probabilities."""

    lengths: Sequence[int]
    cumulative: Sequence[float]

    def at(self, uniform: float) -> int:
        return self.lengths[min(bisect_right(self.cumulative, uniform * self.cumulative[-1]), len(self.lengths) - 1)]


def _open(head: Head) -> OpenTrace:
    path = Path(head.file)
    tables = sorted(path.glob("chunk-*-trace.csv"), key=_number) if path.is_dir() else [path]
    clients = [_client(table, head.seed) for table in tables]
    rows = ((row[0], row) for row in heapq.merge(*clients, key=lambda row: row[1]))
    note = f"drawn from the tables of {len(tables):,} client{'s' * (len(tables) > 1)} (seed {head.seed})"
    return OpenTrace(rows, _as_row, "run", note=note)


def _as_row(drawn: Draw) -> Row:
    _, arrival, inputs, outputs, client = drawn
    if not inputs or not outputs:
        raise RowError("a length drawn from the table is 0")
    return arrival, inputs, outputs, {"class": client}


def _number(table: Path) -> tuple[int, str]:
    name = (_CHUNK.fullmatch(table.name) or ["", ""])[1]
    return (int(name), "") if name.isdecimal() else (2**63, name)


def _client(table: Path, seed: int) -> Iterator[Draw]:
    """The requests of one client in order. Its tables are read at once, and held: some megabytes for a fortnight."""
    from scenarios.random_draws import stream  # here, for it loads numpy.random

    windows = _windows(table)
    match = _CHUNK.search(table.name)
    if match is None:
        raise InputError("the name is not chunk-N-trace.csv: which client does the table belong to?", file=str(table))
    client = f"client-{match[1]}"
    dataset = _dataset(table.with_name(f"chunk-{match[1]}-dataset.json"))
    name = f"servegen {match[1]}"
    arrivals, inputs, outputs = (stream(seed, name, purpose) for purpose in ("arrivals", "input", "output"))

    def requests() -> Iterator[Draw]:
        for window, time_s in _renewals(windows, arrivals):
            before = [pair for start, pair in dataset if start <= window.start_s]
            if before:
                prompt, answer = before[-1]
                yield window.line, time_s, prompt.at(inputs.random()), answer.at(outputs.random()), client

    return requests()


def _renewals(windows: Sequence[_Window], rng: np.random.Generator) -> Iterator[tuple[_Window, float]]:
    """Arrival times, each with its window; what is left of a gap at a window's end goes on at the next one's rate."""
    left: float | None = None  # of the present gap, whose mean is 1
    for window in windows:
        if not window.rate:
            continue
        gaps: Iterator[float] = iter(())
        now = window.start_s
        while True:
            if left is None:
                left = next(gaps, None)
                if left is None:
                    gaps = iter(_gaps(window, rng))
                    continue
            if now + left / window.rate >= window.end_s:
                left -= (window.end_s - now) * window.rate
                break
            now += left / window.rate
            left = None
            yield window, now


def _gaps(window: _Window, rng: np.random.Generator) -> Sequence[float]:
    """Draw gaps of mean 1, as many as a window needs or `_DRAWN_AT_ONCE`."""
    count = min(_DRAWN_AT_ONCE, math.ceil((window.end_s - window.start_s) * window.rate) + 1)
    if window.family == "Gamma":
        drawn: Any = rng.gamma(window.shape, 1.0 / window.shape, count)
    else:
        drawn = rng.weibull(window.shape, count) / math.gamma(1.0 + 1.0 / window.shape)
    return list(drawn.tolist())


def _windows(table: Path) -> list[_Window]:
    """The rows of a table that has any; each ends where the next begins."""
    found: list[_Window] = []
    for line, text in numbered_lines(table):
        try:
            start, rate, _, family, shape, _ = csv_fields(text, 6)
            numbers = [real(value, name) for value, name in ((start, "start"), (rate, "rate"), (shape, "shape"))]
        except RowError as error:
            raise InputError(error.detail, file=str(table), line=line) from error
        start_s, per_s, form = numbers
        active = family.strip() in _FAMILIES and per_s > 0
        if (
            (family.strip() and family.strip() not in _FAMILIES)
            or not 0 <= per_s <= _MOST_A_SECOND
            or (active and not 0.01 <= form <= 1e6)
        ):
            what = f"not a window of Gamma or Weibull arrivals: {text[:60]!a}"
            raise InputError(what, file=str(table), line=line)
        if found and start_s <= found[-1].start_s:
            raise InputError("the windows do not ascend", file=str(table), line=line)
        found.append(_Window(line, start_s, math.inf, per_s if active else 0.0, family.strip(), form))
    if not found:
        raise InputError("the table holds no window", file=str(table))
    last_s = found[-1].start_s - found[-2].start_s if len(found) > 1 else _LAST_WINDOW_S
    ends = [after.start_s for _, after in pairwise(found)] + [found[-1].start_s + last_s]
    return [_Window(w.line, w.start_s, end, w.rate, w.family, w.shape) for w, end in zip(found, ends, strict=True)]


def _dataset(path: Path) -> list[tuple[float, tuple[_Lengths, _Lengths]]]:
    """The distributions of input and output lengths by the start of their windows, ascending."""
    if not path.is_file():
        raise InputError(
            "a ServeGen client's lengths should be in this file, but there is no such file", file=str(path)
        )
    try:
        whole = json.loads(path.read_bytes())
        found = {float(start): _pair(fields) for start, fields in whole.items()}
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise InputError("a distribution is not a Python dict of numbers", file=str(path)) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"not the distributions of a ServeGen client: {type(error).__name__}: {str(error)[:80]!a}",
            file=str(path),
            hint='{"0": {"input_tokens": "{12: 0.5, 40: 0.5}", "output_tokens": "{3: 1.0}"}, ...}',
        ) from error
    return [(start, pair) for start, pair in sorted(found.items()) if pair is not None]


def _pair(fields: dict[str, str]) -> tuple[_Lengths, _Lengths] | None:
    """Read the two distributions; None where one is empty: a window without requests."""
    inputs, outputs = (_lengths(ast.literal_eval(fields[name])) for name in ("input_tokens", "output_tokens"))
    return None if inputs is None or outputs is None else (inputs, outputs)


def _lengths(density: dict[int, float]) -> _Lengths | None:
    pairs = sorted((int(length), float(share)) for length, share in density.items() if share > 0)
    if not pairs:
        return None
    lengths, shares = zip(*pairs, strict=True)
    if lengths[0] < 0 or lengths[-1] > MOST_TOKENS or not math.isfinite(sum(shares)):
        raise ValueError("a length or a probability is out of range")
    total, cumulative = 0.0, []
    for share in shares:
        total += share
        cumulative.append(total)
    return _Lengths(lengths, cumulative)


FORMAT = TraceFormat(
    name="servegen-tables",
    title="ServeGen client tables (a trace is drawn from them)",
    open=_open,
    begins=re.compile(r"\s*[\d.]+,[\d.]+,[\d.]+,(Gamma|Weibull)?,[\d.]+,[\d.]+\s*$", re.MULTILINE),
    in_folder=_CHUNK,
    names_unread=False,
    times="its windows are in seconds",
    also="a folder of ServeGen's clients, each a class, or one of its tables; arrivals are drawn",
)
