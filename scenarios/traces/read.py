"""From a trace file to a Workload: detect, stream, cut, arrange, scale, note each change; large ones by disk."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.traces.arrange import Arranged, arrange, count_late, zero_of
from scenarios.traces.columns import BlockSizes, Columns, Cut, Kept, collect, contents, targets_of
from scenarios.traces.detect import Detected, detect, in_folder, public_source_hint
from scenarios.traces.format import UNIT_NS, OpenTrace, missing_file, numbered_lines
from scenarios.traces.options import TraceOptions
from scenarios.traces.rows import Tally, images_of, plural, size_notes
from simulator.errors import InputError
from simulator.request import PromptContent
from simulator.workload import Floats, Ints, Workload

# Sentences about a whole trace: its headline, the zero of its times, and why nothing of it can be used.

SHORTEST_S = 1e-9  # a trace shorter than this has no rate
_KINDS = {"csv": "CSV", "jsonl": "JSON Lines", "text": "JSON", "folder": "folder"}


def headline(found: Detected, requests: int, rows: int, seconds: float) -> str:
    """Format, size and rate. `seconds` lie between the first arrival and the last."""
    text = f"{found.format} ({_KINDS[found.kind]}): {plural(requests, 'request')} out of {plural(rows, 'row')}"
    if seconds >= SHORTEST_S:
        text += f" in {seconds:,.1f} s, {(requests - 1) / seconds:.3f} requests/s"
    return text


def origin(trace: OpenTrace, zero: float) -> list[str]:
    """Time 0 in the words of the file."""
    if not trace.timed:
        return ["no arrival times: every request arrives at 0, unless workload.trace.arrival gives other arrivals"]
    if trace.clock == "utc":
        whole, rest = divmod(int(zero), 1_000_000_000)
        stamp = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return [f"time 0 is {stamp}.{rest:09d} UTC"]
    if trace.clock == "ticks":
        return [f"time 0 is timestamp {zero / UNIT_NS[trace.time_unit]:.15g} {trace.time_unit}"]
    return [f"time 0 is arrival_time_s {zero!r}"] if zero else []


def file_notes(found: Detected, zero: float, skipped: Tally, cut: Cut) -> list[str]:
    """Return the notes about the file, and about what of it is left out."""
    return [
        *found.notes,
        *origin(found.trace, zero),
        *found.trace.remarks(),
        *(f"skipped {text}" for text in skipped.texts()),
        *cut.notes(),
    ]


def nothing_usable(cut: Cut, skipped: Tally, file: str) -> InputError:
    """There is no request in the file, or in the part of it that was asked for."""
    if not cut.rows_seen:
        return InputError("no usable request: the file has a header but no rows", file=file)
    reasons = [f"skipped {text}" for text in skipped.texts()] + cut.notes()
    return InputError(f"no usable request in {plural(cut.rows_seen, 'row')}", file=file, hint="; ".join(reasons))


def twice(name: str, line: int, first: int, file: str) -> InputError:
    """Two requests have the same name."""
    return InputError(
        f"the request_id {name!a} occurs twice",
        file=file,
        line=line,
        hint=f"first on line {first}; a row without a name has its number, counted from 0, as name",
    )


def missing_notes(missing: int) -> Sequence[str]:
    """Return the note about answers that joins wait for and that are not in the part that is read."""
    return (
        [f"{plural(missing, 'answer')} that requests wait for are not in this part: not waited for"] if missing else []
    )


def follows_notes(followers: int) -> Sequence[str]:
    """Return the notes about requests that follow an answer."""
    if not followers:
        return []
    verb = "follows" if followers == 1 else "follow"
    return [
        f"{plural(followers, 'request')} {verb} an earlier answer (sessions); an open replay keeps the recorded times"
    ]


def read_trace(path: Path, options: TraceOptions | None = None) -> Workload:
    """The requests of a trace, ties in file order.

    The first arrival is at 0; a trace whose times count from the start of its run keeps them (`arrange.zero_of`).
    `Workload.notes` say what was skipped, clipped or moved. Where no row names itself, a request is named by
    its row in the file, counted from 0 without the header. Raises InputError for a file that cannot be read, an
    unknown format, no usable request, a request id that occurs twice, and with `strict` for the first bad row.
    """
    return load(Path(path), options or TraceOptions()).workload


@dataclass(frozen=True, slots=True)
class Reading:
    """A workload, and facts about its file. `skipped` counts unusable rows by reason."""

    workload: Workload
    format: str
    rows: int
    skipped: tuple[tuple[str, int], ...]


def load(path: Path, options: TraceOptions) -> Reading:
    """Read a trace as `read_trace` does; return the facts about its file too."""
    file = str(path)
    skipped, cut = Tally(file, options.strict), Cut()
    with open_trace(path, options) as found:
        columns = collect(found.trace, options, skipped, cut)
    if not len(columns.inputs):
        raise nothing_usable(cut, skipped, file)
    workload = _workload(columns, found, options, file, skipped, cut)
    return Reading(workload, found.format, cut.rows_seen, tuple(skipped.counts.items()))


@contextmanager
def open_trace(path: Path, options: TraceOptions) -> Iterator[Detected]:
    """A trace file at its first row; closed at the end of the block. Raises InputError for what is no trace."""
    if path.is_dir() and (folder := in_folder(path, options)) is not None:
        yield folder
        return
    if not path.exists() and (source := public_source_hint(path.name)) is not None:
        missing = missing_file(path)
        raise InputError(missing.message, file=missing.file, hint=f"{missing.hint}\n  {source}")
    with closing(numbered_lines(path)) as lines:
        yield detect(lines, options, str(path))


def _workload(
    columns: Columns, found: Detected, options: TraceOptions, file: str, skipped: Tally, cut: Cut
) -> Workload:
    names = _names(columns, file)
    targets, missing = targets_of(columns, names, file, whole=not (options.leaves_out or skipped.counts))
    arranged = arrange(columns, options, names, found.trace.timed, targets)
    outputs, caps, cap_notes = _outputs(columns, options)
    inputs = _scaled(np.asarray(columns.inputs, dtype=np.int64), options.input_scale)
    content = contents(columns, inputs, options, file)
    extra, order = columns.extra, arranged.place
    places, count = order.tolist(), len(columns.inputs)
    classes = [extra["class"][place] or "default" for place in places] if "class" in extra else []
    class_names = tuple(dict.fromkeys(classes)) or ("default",)
    index = {name: place for place, name in enumerate(class_names)}
    predicted = extra.get("predicted_output_tokens")
    deadline, patience = extra.get("deadline_s"), extra.get("patience_s")
    ranks = extra.get("data_parallel_rank")
    drafts, loras = extra.get("accepted_drafts"), extra.get("lora")
    zero = zero_of(columns.in_ns, min(columns.arrival), options)
    return Workload(
        arrival_s=arranged.arrival,
        input_tokens=inputs[order],
        output_tokens=outputs[order],
        max_tokens=caps[order],
        priority=_integers(extra.get("priority"), 0, count)[order],
        class_index=np.array([index[name] for name in classes] or [0] * len(places), dtype=np.int64),
        class_names=class_names,
        request_ids=_request_ids(columns, arranged, names),
        session_ids=_of_copies(extra["session_id"], arranged) if "session_id" in extra else None,
        predicted_output_tokens=None if predicted is None else _predicted(predicted, options.output_scale)[order],
        deadline_s=None if deadline is None else _floats(deadline, np.nan)[order],
        data_parallel_rank=None if ranks is None else _integers(ranks, -1, count)[order],
        content=None if content is None or not any(content.rows) else _contents(content.rows, arranged, extra),
        lora=None if loras is None else [loras[place] for place in places],
        images=images_of(extra, columns.inputs, options.image_tokens, options.input_scale, places),
        accepted_drafts=None if drafts is None else [drafts[place] for place in places],
        after_row=arranged.after,
        patience_s=None if patience is None else _floats(patience, np.nan)[order],
        also_after=arranged.also_after,
        task_ids=_of_copies(extra["task_id"], arranged) if "task_id" in extra else None,
        delay_s=_delays(extra.get("delay_s"), arranged, options.rate_scale),
        notes=(
            headline(found, len(places), cut.rows_seen, float(arranged.arrival[-1] - arranged.arrival[0])),
            *file_notes(found, zero, skipped, cut),
            *arranged.notes,
            *missing_notes(missing),
            *(() if arranged.after is None else follows_notes(int(np.count_nonzero(arranged.after >= 0)))),
            *cap_notes,
            *([] if content is None else content.notes),
            *size_notes(extra, options.image_tokens, options.input_scale),
        ),
    )


def _contents(
    rows: Sequence[PromptContent | None], arranged: Arranged, extra: Mapping[str, Sequence[Any]]
) -> list[PromptContent | None]:
    """The contents in the order of the replay; those of copies are their clients' own."""
    places = arranged.place.tolist()
    if arranged.layer is None:
        return [rows[place] for place in places]
    from scenarios.traces.arrange import OwnContents  # few traces are copied

    own = OwnContents(rows, extra.get("session_id"))
    return list(map(own.of, places, arranged.layer.tolist()))


def _outputs(columns: Columns, options: TraceOptions) -> tuple[Ints, Ints, list[str]]:
    """Output lengths and caps, scaled; an output beyond its cap is cut there, as a server would."""
    outputs = np.asarray(columns.outputs, dtype=np.int64)
    caps = _integers(columns.extra.get("max_tokens"), 0, len(outputs))
    own = caps > 0
    over = own & (outputs > caps)
    outputs = np.where(over, caps, outputs)
    cut = int(np.count_nonzero(over))
    outputs = _scaled(outputs, options.output_scale)
    caps = np.maximum(_scaled(caps, options.output_scale), outputs) if own.any() else caps
    default = options.max_tokens or int(outputs.max())
    caps = np.where(own, caps, default)
    over = ~own & (outputs > default)
    cut += int(np.count_nonzero(over))
    outputs = np.where(over, default, outputs)
    return outputs, caps, [f"clipped {plural(cut, 'output')} to max_tokens"] if cut else []


def _scaled(lengths: Ints, scale: float) -> Ints:
    return lengths if scale == 1.0 else np.maximum(np.rint(lengths * scale).astype(np.int64), 1)


def _predicted(column: Sequence[int | None], scale: float) -> Ints:
    known = _integers(column, -1, len(column))
    return np.where(known > 0, _scaled(known, scale), known)


def _integers(column: Sequence[int | None] | None, absent: int, count: int) -> Ints:
    if column is None:
        return np.full(count, absent, dtype=np.int64)
    return np.array([absent if value is None else value for value in column], dtype=np.int64)


def _floats(column: Sequence[float | None], absent: float) -> Floats:
    return np.array([absent if value is None else value for value in column], dtype=np.float64)


def _delays(column: Sequence[float | None] | None, arranged: Arranged, rate_scale: float) -> Floats | None:
    """Seconds since the answer before; 0 for a request that follows none. None where no request does."""
    if arranged.after is None:
        return None
    given = np.zeros(len(arranged.after)) if column is None else _floats(column, 0.0)[arranged.place]
    return np.where(arranged.after >= 0, given, 0.0) / rate_scale


def _names(columns: Columns, file: str) -> list[str] | None:
    """The name of each row in file order; None where none has one of its own."""
    given: list[Any] | None = columns.extra.get("request_id")
    if given is None:
        return None
    names = [str(row) if name is None else name for name, row in zip(given, columns.row, strict=True)]
    if len(set(names)) < len(names):
        places: dict[str, int] = {}
        for place, name in enumerate(names):
            if (first := places.setdefault(name, place)) != place:
                raise twice(name, columns.line[place], columns.line[first], file)
    return names


def _request_ids(columns: Columns, arranged: Arranged, names: list[str] | None) -> Sequence[str] | None:
    """Names in the order of the replay; None where every request lies at the row that it is named by."""
    if names is None and arranged.layer is None:
        rows = np.asarray(columns.row, dtype=np.int64)
        if np.array_equal(rows[arranged.place] + arranged.copy * len(rows), np.arange(len(arranged.place))):
            return None
    names = names or list(map(str, columns.row))
    return [str(name) for name in _of_copies(names, arranged)]


def _of_copies(names: Sequence[str | None], arranged: Arranged) -> list[str | None]:
    """Names in the order of the replay; those of later passes and of other copies say which."""
    pairs = zip(arranged.place.tolist(), arranged.copy.tolist(), strict=True)
    found = [
        names[place] if not copy or names[place] is None else f"{names[place]}#{copy + 1}" for place, copy in pairs
    ]
    if arranged.layer is None:
        return found
    layers = arranged.layer.tolist()
    return [f"{name}@{at + 1}" if at and name is not None else name for name, at in zip(found, layers, strict=True)]


# The rows of a trace on disk, sorted: what lets a file larger than memory be inspected and converted.
#
# Rows go into a temporary SQLite file, some 30 bytes each and their optional columns as JSON. If they came in order
# they are read back as they lie; otherwise SQLite sorts them outside of memory. Either way one chunk is in memory
# at a time.

CHUNK_ROWS = 16_384
_CACHE_KIB = 16_384
_LISTS = ("block_hashes", "prompt_token_ids", "output_token_ids", "after_request_ids")


class RowStore:
    """Rows of a trace, filled once. A context: the file is gone at its end."""

    def __init__(self, columns_for: Callable[[], Columns], folder: Path | None = None) -> None:
        self._columns_for = columns_for
        self._folder = tempfile.TemporaryDirectory(prefix=".batchlab-", dir=folder, ignore_cleanup_errors=True)
        self._db = sqlite3.connect(Path(self._folder.name) / "rows", isolation_level=None)
        for setting in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{_CACHE_KIB}"):
            self._db.execute(f"PRAGMA {setting}")
        self._db.execute("CREATE TABLE rows (arrival, number, line, inputs, outputs, name, extra)")
        self.count = 0
        self.first = float("inf")
        self.late = 0
        self.moved = False  # whether a row lies elsewhere than at its number
        self.named = False
        self.followers = 0
        self.extra: set[str] = set()  # the optional columns that any row has
        self.sizes = BlockSizes()

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._folder.cleanup()

    def fill(self, rows: Iterable[Kept], file: str) -> None:
        """Take in all rows. Raises InputError for a name that occurs twice, and for a full disk."""
        rows = iter(rows)
        latest: Any = None
        try:
            self._db.execute("BEGIN")
            while chunk := list(islice(rows, CHUNK_ROWS)):
                latest = self._add(chunk, latest)
            self._db.execute("COMMIT")
            if self.named:
                self._check_names(file)
        except sqlite3.Error as error:
            raise InputError(
                f"cannot keep the rows in a temporary file: {error}", file=file, hint="TMPDIR names the folder for it"
            ) from error

    def _add(self, chunk: list[Kept], latest: Any) -> Any:
        """Put rows in, and count them; returns the latest arrival so far."""
        self._db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", map(_as_stored, chunk))
        stamps = np.array([row[2] for row in chunk])
        if latest is not None:
            stamps = np.concatenate(([latest], stamps))
        self.late += count_late(stamps)
        self.first = min(self.first, stamps.min().item())
        numbers = np.fromiter((row[1] for row in chunk), dtype=np.int64, count=len(chunk))
        self.moved = self.moved or bool(np.any(numbers != np.arange(self.count, self.count + len(chunk))))
        self.count += len(chunk)
        extras = [row for row in chunk if row[5]]
        if extras:
            part = self._columns_for().fill(extras)
            self.extra.update(part.extra)
            self.named = self.named or "request_id" in part.extra
            for follows in ("after_request_id", "after_request_ids"):
                self.followers += sum(name is not None for name in part.extra.get(follows, ()))
            self.sizes.add_rows(part.inputs, part.extra)
        return stamps.max().item()

    def _check_names(self, file: str) -> None:
        """Rows without a name of their own are named by their number."""
        name = "coalesce(name, cast(number AS text))"
        again = self._db.execute(f"SELECT {name} FROM rows GROUP BY 1 HAVING count(*) > 1 LIMIT 1").fetchone()
        if again is not None:
            lines = self._db.execute(f"SELECT line FROM rows WHERE {name} = ? ORDER BY rowid LIMIT 2", again).fetchall()
            raise twice(again[0], lines[1][0], lines[0][0], file)

    def chunks(self) -> Iterator[Columns]:
        """All rows by arrival, ties in file order, as columns of at most CHUNK_ROWS."""
        order = "arrival, rowid" if self.late else "rowid"
        rows = self._db.execute(f"SELECT line, number, arrival, inputs, outputs, extra FROM rows ORDER BY {order}")
        while chunk := rows.fetchmany(CHUNK_ROWS):
            yield self._columns_for().fill(
                (*row, None if extra is None else _from_json(extra)) for *row, extra in chunk
            )


def _as_stored(row: Kept) -> tuple[Any, ...]:
    line, number, arrival, inputs, outputs, extra = row
    if not extra:
        return arrival, number, line, inputs, outputs, None, None
    return arrival, number, line, inputs, outputs, extra.get("request_id"), json.dumps(extra, separators=(",", ":"))


def _from_json(text: str) -> dict[str, Any]:
    extra: dict[str, Any] = json.loads(text)
    for name in _LISTS:
        if name in extra:
            extra[name] = tuple(extra[name])
    return extra
