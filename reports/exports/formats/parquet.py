"""The run's tables as parquet: the columns of the CSV files, with their types; what is not there is null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reports.exports.exported_run import Exported, ExportFormat, Table

NAMES = ("requests", "steps", "replicas", "lives", "transfers")


def _write(run: Exported, folder: Path) -> None:
    from pyarrow import parquet

    for name, table in run.tables.items():
        parquet.write_table(_arrow(table), folder / f"{name}.parquet")


def _arrow(table: Table) -> Any:
    import pyarrow

    return pyarrow.table({name: _column(pyarrow, column) for name, column in table.items()})


def _column(pyarrow: Any, column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return pyarrow.array(column, from_pandas=True)  # NaN is null
    return pyarrow.array([text or None for text in column], pyarrow.string())


FORMAT = ExportFormat(
    title="pandas, polars, DuckDB, Spark",
    note="the tables with their types; nulls for what never happened",
    files=tuple(f"{name}.parquet" for name in NAMES),
    write=_write,
    extra="parquet",
    package="pyarrow",
)
