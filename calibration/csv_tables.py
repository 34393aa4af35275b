"""CSV files read as columns, gzipped or not; numbers are floats."""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError

Columns = dict[str, NDArray[Any]]


TEXT = ("layer", "model", "hardware", "collective", "is_prefill")  # columns of words; all others are numbers


def find_columns(folder: Path, name: str, columns: Sequence[str]) -> Columns | None:
    """Read columns of folder/name.csv or .csv.gz; None where neither exists. InputError where it lacks a column."""
    for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
        if path.exists():
            return read_csv(path, columns)
    return None


def read_columns(folder: Path, name: str, columns: Sequence[str]) -> Columns:
    """Read columns as `find_columns` does. InputError where the file does not exist."""
    if (found := find_columns(folder, name, columns)) is None:
        raise InputError(f"no {name}.csv and no {name}.csv.gz", file=str(folder))
    return found


def read_text(path: Path, what: str) -> str:
    """Read a file's text, unpacked where its name ends in .gz. The InputError of a failure calls the file `what`."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {what}: {error}", file=str(path)) from None


def read_csv(path: Path, columns: Sequence[str]) -> Columns:
    """Read the named columns of a CSV file. InputError where one is missing, or holds anything but numbers."""
    lines = csv.reader(read_text(path, "the table").splitlines())
    header = next(lines, [])
    missing = [name for name in columns if name not in header]
    if missing:
        raise InputError(f"no column {missing[0]}", file=str(path), hint=f"columns here: {', '.join(header)[:300]}")
    places = [header.index(name) for name in columns]
    rows = []
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise InputError(f"{len(line)} values for {len(header)} columns", file=str(path), line=number)
        rows.append([line[place] for place in places])
    return {name: _typed(path, name, [row[i] for row in rows]) for i, name in enumerate(columns)}


def _typed(path: Path, name: str, values: list[str]) -> NDArray[Any]:
    if name in TEXT:
        return np.array(values, dtype=np.str_)
    numbers = np.empty(len(values))
    for i, value in enumerate(values):
        try:
            numbers[i] = float(value) if value else np.nan
        except ValueError:
            raise InputError(f"{name} is {value!r}, not a number", file=str(path), line=i + 2) from None
    return numbers
