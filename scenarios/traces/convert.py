"""Any trace as a native one, row by row: `batchlab trace convert`.

Reading the copy gives the workload that reading the original gives. What rows do not have is not made up: a missing
cap, for instance, stays missing, and is the largest output when either file is read.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.traces.arrange import late_note, zero_of
from scenarios.traces.columns import Columns, Cut, columns_for, kept_rows
from scenarios.traces.content import Contents, block_notes, part_contents
from scenarios.traces.formats.native import REQUIRED
from scenarios.traces.images import of_count, size_notes, written
from scenarios.traces.joins import KEY
from scenarios.traces.native_writer import native_file, write_native
from scenarios.traces.options import TraceOptions
from scenarios.traces.read import open_trace, read_trace
from scenarios.traces.rows import Tally
from scenarios.traces.store import RowStore
from scenarios.traces.wording import file_notes, follows_notes, headline, nothing_usable
from simulator.request import Image


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
                part = _part(columns, names, zero)
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


def _part(columns: Columns, names: frozenset[str], zero: float) -> dict[str, Sequence[Any]]:
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
