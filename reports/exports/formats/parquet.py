"""The run's tables as parquet: the columns of the CSV files, with their types; what is not there is null."""

from pathlib import Path
from typing import Any

import numpy as np

from reports.exports.exported_run import Exported, ExportFormat

NAMES = ("requests", "steps", "replicas", "lives", "transfers")


def _write(run: Exported, folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    def column(values: Any) -> Any:
        if isinstance(values, np.ndarray):
            return pyarrow.array(values, from_pandas=True)  # NaN is null
        return pyarrow.array([text or None for text in values], pyarrow.string())

    for name, table in run.tables.items():
        columns = {title: column(values) for title, values in table.items()}
        parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")


FORMAT = ExportFormat(
    title="pandas, polars, DuckDB, Spark",
    note="the tables with their types; nulls for what never happened",
    files=tuple(f"{name}.parquet" for name in NAMES),
    write=_write,
    extra="parquet",
    package="pyarrow",
)
