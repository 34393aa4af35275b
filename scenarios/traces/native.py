"""The native trace format, CSV or JSON Lines: what batchlab writes, and what a user's own log is best turned into.

`arrival_time_s`, `input_tokens` and `output_tokens`, and any of the optional columns. An empty field (or null) means
that the row has none. In JSON Lines a row may hold `prompt_token_ids` and `output_token_ids` too, which also say how
many tokens there are where the counts are left out. `deadline_s` counts from the request's arrival.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.traces.rows import (
    MOST_TOKENS,
    Extra,
    ParseRow,
    Row,
    RowError,
    count,
    integer,
    integers,
    json_object,
    real,
    split_csv,
    tokens,
    word,
)
from simulator.errors import InputError
from simulator.request import PromptContent
from simulator.workload import Workload

REQUIRED = ("arrival_time_s", "input_tokens", "output_tokens")
LATEST_S = 1e12


def _priority(value: object, name: str) -> int:
    number = integer(value, name)
    if not -MOST_TOKENS <= number <= MOST_TOKENS:
        raise RowError(f"{name} is out of range", value)
    return number


def seconds(value: object, name: str) -> float:
    """A time of 0 or more."""
    number = real(value, name)
    if number < 0:
        raise RowError(f"{name} is negative", value)
    if number > LATEST_S:
        raise RowError(f"{name} is too large for a time", value)
    return number


OPTIONAL: dict[str, Callable[[object, str], Any]] = {
    "request_id": word,
    "priority": _priority,
    "class": word,
    "session_id": word,
    "prefix_group": word,
    "prefix_tokens": count,
    "block_hashes": integers,
    "hash_block_size": tokens,
    "max_tokens": tokens,
    "predicted_output_tokens": count,
    "deadline_s": seconds,
}
_TOKEN_IDS = {"input_tokens": "prompt_token_ids", "output_tokens": "output_token_ids"}


def csv_parser(positions: dict[str, int], width: int) -> ParseRow:
    """A parser of CSV lines with `width` fields whose columns lie at `positions`."""
    arrival, inputs, outputs = (positions[name] for name in REQUIRED)
    optional = [(positions[name], name, convert) for name, convert in OPTIONAL.items() if name in positions]

    def parse(text: str) -> Row:
        fields = split_csv(text)
        if len(fields) != width:
            raise RowError(f"not {width} fields", text)
        extra = {name: convert(fields[place], name) for place, name, convert in optional if fields[place].strip()}
        input_tokens = tokens(fields[inputs], "input_tokens")
        if extra:
            _check(extra, input_tokens)
        return (
            seconds(fields[arrival], "arrival_time_s"),
            input_tokens,
            tokens(fields[outputs], "output_tokens"),
            extra,
        )

    return parse


def json_parser() -> ParseRow:
    """A parser of JSON Lines."""

    def parse(text: str) -> Row:
        fields = json_object(text)
        extra = {
            name: convert(fields[name], name)
            for name, convert in OPTIONAL.items()
            if fields.get(name) is not None and fields[name] != ""
        }
        for counted, listed in _TOKEN_IDS.items():
            if fields.get(listed) is not None:
                extra[listed] = _token_ids(fields, counted, listed)
        input_tokens = tokens(fields.get("input_tokens"), "input_tokens")
        _check(extra, input_tokens)
        return (
            seconds(fields.get("arrival_time_s"), "arrival_time_s"),
            input_tokens,
            tokens(fields.get("output_tokens"), "output_tokens"),
            extra,
        )

    return parse


def _token_ids(fields: dict[str, Any], counted: str, listed: str) -> tuple[int, ...]:
    """The list, which must be as long as its count says; gives the count where there is none."""
    ids = integers(fields[listed], listed)
    if fields.get(counted) is None:
        fields[counted] = len(ids)
    elif count(fields[counted], counted) != len(ids):
        raise RowError(f"{listed} is not {counted} long", f"{len(ids)} for {fields[counted]}")
    return ids


def _check(extra: Extra, input_tokens: int) -> None:
    prefix = extra.get("prefix_tokens")
    if prefix and "prefix_group" not in extra:
        raise RowError("prefix_tokens without a prefix_group")
    if "prefix_group" in extra and prefix is None:
        raise RowError("prefix_group without prefix_tokens")
    if prefix and prefix > input_tokens:
        raise RowError("prefix_tokens is above input_tokens", f"{prefix} of {input_tokens}")
    if "hash_block_size" in extra and "block_hashes" not in extra:
        raise RowError("hash_block_size without block_hashes")


def write_native(workload: Workload, path: Path) -> None:
    """Write a workload as a native trace that reads back equal: `.csv` or `.jsonl`, with `.gz` after it gzipped.

    The file appears whole or not at all, and equal workloads make equal bytes. Raises InputError for another suffix,
    an unwritable place, names that CSV cannot hold, and token ids in CSV.
    """
    path = Path(path)
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in (".csv", ".jsonl"):
        raise InputError(
            f"cannot tell the kind of trace from the name {path.name!r}",
            file=str(path),
            hint="end it with .csv, .csv.gz, .jsonl or .jsonl.gz",
        )
    columns = _columns(workload, str(path))
    with _whole_file(path) as stream:
        if kind == ".jsonl":
            for row in zip(*columns.values(), strict=True):
                fields = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
                stream.write(json.dumps(fields, separators=(",", ":")) + "\n")
            return
        for name in columns:
            if name in _TOKEN_IDS.values():
                raise InputError(f"CSV cannot hold {name}", file=str(path), hint="write JSON Lines (.jsonl, .jsonl.gz)")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        if "block_hashes" in columns:
            columns["block_hashes"] = [None if h is None else " ".join(map(str, h)) for h in columns["block_hashes"]]
        writer.writerows(zip(*columns.values(), strict=True))


def _columns(workload: Workload, file: str) -> dict[str, Sequence[Any]]:
    """Native columns by name, in the order in which they are written; None where a row has no value."""
    columns: dict[str, Sequence[Any] | None] = {
        "arrival_time_s": workload.arrival_s.tolist(),
        "input_tokens": workload.input_tokens.tolist(),
        "output_tokens": workload.output_tokens.tolist(),
        "request_id": workload.request_ids,
        "priority": workload.priority.tolist() if np.any(workload.priority != 0) else None,
        "class": None,
        "session_id": workload.session_ids,
        "max_tokens": workload.max_tokens.tolist(),
    }
    if workload.class_names != ("default",):
        columns["class"] = [workload.class_names[index] for index in workload.class_index.tolist()]
    if workload.predicted_output_tokens is not None:
        columns["predicted_output_tokens"] = [n if n >= 0 else None for n in workload.predicted_output_tokens.tolist()]
    if workload.deadline_s is not None:
        columns["deadline_s"] = [s if s == s else None for s in workload.deadline_s.tolist()]
    if workload.content is not None:
        columns |= _content_columns([content or PromptContent() for content in workload.content])
    for name in ("request_id", "class", "session_id", "prefix_group"):
        _check_names(columns.get(name) or (), name, file)
    return {name: column for name, column in columns.items() if column is not None}


def _content_columns(contents: Sequence[PromptContent]) -> Mapping[str, Sequence[Any] | None]:
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
                with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed, io.TextIOWrapper(packed, "utf-8") as text:
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
