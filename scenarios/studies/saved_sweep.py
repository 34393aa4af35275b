"""Read the folder of a sweep back: its study, and the rows of its table."""

from __future__ import annotations

import csv
from pathlib import Path

from scenarios.runs.storage.run_folder import STUDY, TABLE
from scenarios.studies.run_sweep import Swept
from scenarios.studies.study import load_study
from scenarios.studies.study_run import Outcome
from scenarios.studies.sweep_table import ERROR, read_csv
from simulator.errors import InputError


def read_sweep(folder: Path) -> Swept:
    """Read the sweep in a folder, as if all of its runs had been reused. The files that it names need not be there.

    Raises InputError for a sweep that has not ended, and for a damaged table.
    """
    study = load_study(folder / STUDY, check_files=False)
    path = folder / TABLE
    if not path.is_file():
        raise InputError(
            "the sweep is not finished", file=str(path), hint="batchlab sweep with the same --out continues it"
        )
    try:
        cells = read_csv(path)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None
    runs = study.runs()
    if [row["seed"] for row in cells] != [seed for _, seed in runs]:
        what = f"has {len(cells):,} rows, and the study beside it {len(runs):,} runs"
        raise InputError(what, file=str(path), hint="batchlab sweep with the same --out writes it again")
    own = {*study.keys, "seed", ERROR}
    rows = []
    for (setting, seed), row in zip(runs, cells, strict=True):
        summary = {} if row[ERROR] else {key: value for key, value in row.items() if key not in own}
        rows.append((setting, seed, Outcome(summary, row[ERROR] or "")))
    failed = sum(1 for _, _, outcome in rows if outcome.error)
    return Swept(study, rows, 0, len(rows) - failed, failed)
