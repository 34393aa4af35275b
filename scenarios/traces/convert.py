"""Any trace as a native one, row by row: `batchlab trace convert`.

Reading the copy gives the workload that reading the original gives. What rows do not have is not made up: a missing
cap, for instance, stays missing, and is the largest output when either file is read.
"""

import csv
import gzip
import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.traces.arrange import late_note, zero_of
from scenarios.traces.columns import KEY, Columns, Contents, Cut, block_notes, columns_for, kept_rows, part_contents
from scenarios.traces.formats.native import OPTIONAL, REQUIRED, TOKEN_IDS
from scenarios.traces.options import TraceOptions
from scenarios.traces.read import RowStore, file_notes, follows_notes, headline, nothing_usable, open_trace, read_trace
from scenarios.traces.rows import Tally, of_count, size_notes, written
from simulator.errors import InputError
from simulator.request import Image, PromptContent
from simulator.workload import Workload

# The native trace format, written: CSV or JSON Lines, gzipped or not, a part after the other.

Part = Mapping[str, Sequence[Any]]
"""Native columns of some rows by name, None where a row has no value."""

_ORDER = (*REQUIRED, *OPTIONAL, *TOKEN_IDS.values())
_LISTS = {"block_hashes", "accepted_drafts", "images", "after_request_ids"}
_NAMES = ("request_id", "class", "session_id", "prefix_group", "after_request_id", "task_id", "lora")
_GZIP_LEVEL = 6  # the highest takes three times as long for 2 % less


def write_native(workload: Workload, path: Path) -> None:
    """Write a workload as a native trace that reads back equal: `.csv` or `.jsonl`, with `.gz` after it gzipped.

    Raises InputError as `native_file` does.
    """
    part = _part_of_workload(workload)
    with native_file(path, part) as write:
        write(part)


@contextmanager
def native_file(path: Path, columns: Collection[str]) -> Iterator[Callable[[Part], None]]:
    """Yield what writes a part of a native trace that has these columns, all of which each part must have.

    The file appears whole or not at all, and equal rows make equal bytes. Raises InputError for another suffix, an
    unwritable place, names that a line cannot hold, and token ids in CSV.
    """
    path = Path(path)
    kind = native_kind(path)
    names = [name for name in _ORDER if name in columns]
    for name in TOKEN_IDS.values():
        if kind == ".csv" and name in names:
            raise InputError(f"CSV cannot hold {name}", file=str(path), hint="write JSON Lines (.jsonl, .jsonl.gz)")
    with _whole_file(path) as stream:
        write_rows = _csv_rows(stream, names) if kind == ".csv" else _json_rows(stream, names)

        def write(part: Part) -> None:
            for name in _NAMES:
                _check_names(part.get(name, ()), name, str(path))
            if kind == ".csv" and any(re.search(r"\s", each) for ids in part.get(KEY, ()) for each in ids or ()):
                hint = "write JSON Lines (.jsonl, .jsonl.gz)"
                raise InputError(f"CSV cannot hold {KEY} whose names have spaces", file=str(path), hint=hint)
            write_rows(part)

        yield write


def native_kind(path: Path) -> str:
    """`.csv` or `.jsonl`, by the name. Raises InputError for any other."""
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in (".csv", ".jsonl"):
        raise InputError(
            f"cannot tell the kind of trace from the name {path.name!r}",
            file=str(path),
            hint="end it with .csv, .csv.gz, .jsonl or .jsonl.gz",
        )
    return kind


def _csv_rows(stream: io.TextIOBase, names: Sequence[str]) -> Callable[[Part], None]:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)

    def write(part: Part) -> None:
        columns = {name: part[name] for name in names}
        for name in _LISTS & columns.keys():
            columns[name] = [None if each is None else " ".join(map(str, each)) for each in columns[name]]
        writer.writerows(zip(*columns.values(), strict=True))

    return write


def _json_rows(stream: io.TextIOBase, names: Sequence[str]) -> Callable[[Part], None]:
    def write(part: Part) -> None:
        for row in zip(*(part[name] for name in names), strict=True):
            fields = {name: value for name, value in zip(names, row, strict=True) if value is not None}
            stream.write(json.dumps(fields, separators=(",", ":")) + "\n")

    return write


def _part_of_workload(workload: Workload) -> Part:
    """All of a workload as native columns."""
    columns: dict[str, Sequence[Any] | None] = {
        "arrival_time_s": workload.arrival_s.tolist(),
        "input_tokens": workload.input_tokens.tolist(),
        "output_tokens": workload.output_tokens.tolist(),
        "request_id": workload.request_ids,
        "priority": workload.priority.tolist() if np.any(workload.priority != 0) else None,
        "session_id": workload.session_ids,
        "max_tokens": workload.max_tokens.tolist(),
    }
    if workload.class_names != ("default",):
        columns["class"] = [workload.class_names[index] for index in workload.class_index.tolist()]
    if workload.predicted_output_tokens is not None:
        columns["predicted_output_tokens"] = [n if n >= 0 else None for n in workload.predicted_output_tokens.tolist()]
    if workload.deadline_s is not None:
        columns["deadline_s"] = [s if s == s else None for s in workload.deadline_s.tolist()]
    if workload.data_parallel_rank is not None:
        columns["data_parallel_rank"] = [n if n >= 0 else None for n in workload.data_parallel_rank.tolist()]
    if workload.patience_s is not None:
        columns["patience_s"] = [s if s == s else None for s in workload.patience_s.tolist()]
    if workload.lora is not None:
        columns["lora"] = workload.lora
    if workload.task_ids is not None:
        columns["task_id"] = workload.task_ids
    if workload.images is not None:
        columns["images"] = [written(images) for images in workload.images]
    if workload.accepted_drafts is not None:
        columns["accepted_drafts"] = workload.accepted_drafts
    if workload.content is not None:
        columns |= _content_columns([content or PromptContent() for content in workload.content])
    if workload.after_row is not None and np.any(workload.after_row >= 0):
        after = workload.after_row.tolist()
        delays = [0.0] * len(after) if workload.delay_s is None else workload.delay_s.tolist()
        others = workload.also_after or [()] * len(after)
        alone = [
            workload.request_id(row) if row >= 0 and not more else None for row, more in zip(after, others, strict=True)
        ]
        columns["after_request_id"] = alone if any(name is not None for name in alone) else None
        if any(others):
            columns[KEY] = [
                tuple(map(workload.request_id, (row, *more))) if more else None
                for row, more in zip(after, others, strict=True)
            ]
        columns["delay_s"] = [delay if row >= 0 else None for row, delay in zip(after, delays, strict=True)]
    return {name: column for name, column in columns.items() if column is not None}


def _content_columns(contents: Sequence[PromptContent]) -> Part:
    columns: dict[str, Sequence[Any]] = {
        "prefix_group": [c.prefix_group for c in contents],
        "prefix_tokens": [None if c.prefix_group is None else c.prefix_tokens for c in contents],
        "block_hashes": [c.block_hashes or None for c in contents],
        "hash_block_size": [c.hash_block_size if c.block_hashes else None for c in contents],
        "prompt_token_ids": [c.prompt_token_ids or None for c in contents],
        "output_token_ids": [c.output_token_ids or None for c in contents],
    }
    return {name: column for name, column in columns.items() if any(value is not None for value in column)}


def _check_names(column: Sequence[Any], name: str, file: str) -> None:
    for value in column:
        if value is not None and (not value.strip() or "\n" in value or "\r" in value or not _is_utf8(value)):
            raise InputError(f"the {name} {value!a} cannot be written", file=file, hint="one line of text, not blank")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _whole_file(path: Path) -> Iterator[io.TextIOBase]:
    """Text to a file that takes its place at the end; gzip (without a date) where the name says so."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw:
            if path.suffix == ".gz":
                packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0)
                with packed, io.TextIOWrapper(packed, "utf-8") as text:
                    yield text
            else:
                with io.TextIOWrapper(raw, "utf-8") as text:
                    yield text
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", file=str(path)) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def convert_trace(path: Path, out: Path, options: TraceOptions | None = None) -> tuple[str, ...]:
    """Write the trace at `path` as a native one to `out` and return the notes about it.

    The rows pass by on disk, in a temporary file beside `out`, so that either file may be larger than memory. `out` is
    replaced. Raises InputError for what `read_trace` and `native_file` refuse. Options that move or scale requests have
    them all in memory, and so have requests that wait for several where not all rows are used.
    """
    path, out, options = Path(path), Path(out), options or TraceOptions()
    if options.arranges:
        return _at_once(path, out, options)
    file = str(path)
    skipped, cut = Tally(file, options.strict), Cut()
    folder = out.parent if out.parent.is_dir() else None  # a missing one is said when `out` is written
    with open_trace(path, options) as found, RowStore(partial(columns_for, found.trace), folder) as store:
        store.fill(kept_rows(found.trace, options, skipped, cut), file)
        if not store.count:
            raise nothing_usable(cut, skipped, file)
        if KEY in store.extra and (options.leaves_out or skipped.counts):
            # Of the answers that a request waits for, some may be left out: all names must be known to tell.
            return _at_once(path, out, options)
        zero = zero_of(found.trace.clock != "run", store.first, options)
        names, dropped = _columns(store), Tally(file, options.strict)
        last = 0.0
        with native_file(out, names) as write:
            for columns in store.chunks():
                part = _part_of_columns(columns, names, zero)
                if "images" in names:
                    part["images"] = _images(part, options.image_tokens)
                if "block_hashes" in names:
                    inputs = np.asarray(columns.inputs, dtype=np.int64)
                    part |= _hashes(part_contents(columns, inputs, options, file, store.sizes, dropped))
                last = part["arrival_time_s"][-1]
                write(part)
        return (
            headline(found, store.count, cut.rows_seen, last - _seconds(store.first, zero, columns.in_ns)),
            *file_notes(found, zero, skipped, cut),
            *([late_note(store.late)] if store.late else []),
            *follows_notes(store.followers),
            *block_notes(store.sizes, dropped),
            *size_notes(dict.fromkeys(store.extra, ()), options.image_tokens, options.input_scale),
        )


def _at_once(path: Path, out: Path, options: TraceOptions) -> tuple[str, ...]:
    """Convert a trace that is in memory as a whole."""
    workload = read_trace(path, options)
    write_native(workload, out)
    return workload.notes


def _columns(store: RowStore) -> frozenset[str]:
    """The native columns that the rows need: names of their own, if they lie elsewhere than at their number."""
    names = {*REQUIRED, *store.extra}
    if "num_images" in names:
        names.add("images")
    if store.moved or store.late:
        names.add("request_id")
    if "block_hashes" in names:
        names.add("hash_block_size")
    return frozenset(names)


def _part_of_columns(columns: Columns, names: frozenset[str], zero: float) -> dict[str, Sequence[Any]]:
    """Native columns of some rows."""
    absent: list[Any] = [None] * len(columns.inputs)
    part: dict[str, Sequence[Any]] = {name: columns.extra.get(name, absent) for name in names}
    part["arrival_time_s"] = _seconds(np.asarray(columns.arrival), zero, columns.in_ns).tolist()
    part["input_tokens"], part["output_tokens"] = columns.inputs, columns.outputs
    if "request_id" in names:
        pairs = zip(part["request_id"], columns.row, strict=True)
        part["request_id"] = [str(row) if name is None else name for name, row in pairs]
    return part


def _images(part: Mapping[str, Sequence[Any]], each_tokens: int | None) -> list[list[str] | None]:
    """The images of each request, those that are only counted too where their size is given."""
    counted = part.get("num_images")
    if counted is not None:
        sizes = zip(counted, part["input_tokens"], strict=True)
        return [written(of_count(count or 0, tokens, each_tokens or 0)) for count, tokens in sizes]
    return [None if images is None else written([Image(*image) for image in images]) for images in part["images"]]


def _hashes(contents: Contents | None) -> dict[str, Sequence[Any]]:
    """The hashes that fit their prompts, and the size of their blocks."""
    assert contents is not None, "a column of hashes holds contents"
    rows = [content if content is not None and content.block_hashes else None for content in contents.rows]
    return {
        "block_hashes": [None if content is None else content.block_hashes for content in rows],
        "hash_block_size": [None if content is None else content.hash_block_size for content in rows],
    }


def _seconds(arrival: Any, zero: float, in_ns: bool) -> Any:
    """Arrivals in seconds from the zero, to the bit as `arrange` has them."""
    return (arrival - zero) / 1e9 if in_ns else arrival - zero
