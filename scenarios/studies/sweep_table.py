"""The table of a sweep: a row a point and seed, in the order of the grid."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenarios.studies.study_axes import Setting
from scenarios.studies.study_run import Outcome

ERROR = "error"

Row = tuple[Setting, int, Outcome]
"""Setting, seed and outcome of a run."""


def columns(keys: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """List the columns: the varied keys, `seed`, the keys of summary.json as they come up, and `error`."""
    summary = dict.fromkeys(key for _, _, outcome in rows for key in outcome.summary)
    return [*keys, "seed", *(key for key in summary if key not in keys), ERROR]


def cells(names: Sequence[str], row: Row) -> list[Any]:
    """Return the values of a row; None where it has none, and mappings and lists as JSON."""
    setting, seed, outcome = row
    values: dict[str, Any] = {**outcome.summary, **setting, "seed": seed, ERROR: outcome.error}
    found = [values.get(name) for name in names]
    return [json.dumps(each, ensure_ascii=False) if isinstance(each, (dict, list, tuple)) else each for each in found]


def write_csv(path: Path, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Write the table as CSV: numbers in full, `true` and `false`, and nothing for what a row has not."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for row in rows:
            writer.writerow([_text(value) for value in cells(names, row)])


def write_parquet(path: Path, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Write the table as parquet, if pyarrow is installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return
    by_name = zip(*(cells(names, row) for row in rows), strict=True)
    parquet.write_table(
        pyarrow.table({name: _alike(column) for name, column in zip(names, by_name, strict=True)}), path
    )


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a table that `write_csv` wrote: each a mapping of column to value.

    Raises OSError, and ValueError or csv.Error where the file is no such table.
    """
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        found = [{name: _value(text) for name, text in row.items()} for row in reader]
    if not found or not {"seed", ERROR} <= found[0].keys():
        raise ValueError("it is no table of a sweep")
    return found


def _value(text: str | None) -> Any:
    if text is None:
        raise ValueError("a row ends too soon")
    if not text:
        return None
    for read in (json.loads, float):  # "nan" is a float, and no JSON
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _alike(values: Sequence[Any]) -> Sequence[Any]:
    """Give the values of a column one type for parquet: numbers as floats if one is, all as text if they mix."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else _text(value) for value in values]
    return values
