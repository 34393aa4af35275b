"""The run folder: what a run leaves on disk, written whole or not at all. `saved_run` reads it back.

`requests.csv.gz` and `steps.csv.gz` are the two tables, for people and for other tools. `records.npz` holds the rest
that plots need: the end and the used blocks of every single step, also of those folded into one row, the gaps
between tokens, the waits after preemption. Nothing in a folder tells when it was written: equal runs, equal bytes.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy

from scenarios.runs.storage.staging import is_partial, unwritable
from scenarios.runs.storage.tables import (
    open_deterministic,
    request_columns,
    step_columns,
    validation_columns,
    write_csv,
)
from scenarios.schema.loader import dump
from simulator.errors import InputError
from simulator.results.records import Records

if TYPE_CHECKING:
    from scenarios.runs.result import Result
    from scenarios.schema.scenario import Scenario
    from scenarios.validate.compare import Validation

FORMAT = 1  # of the files; a folder of another one is refused
SCENARIO, SUMMARY, COMPARISON, REPORT, PLOTS = "scenario.yaml", "summary.json", "compare.json", "report.html", "plots"
REQUESTS, STEPS, REST, DECISIONS = "requests.csv.gz", "steps.csv.gz", "records.npz", "decisions.jsonl.gz"
VALIDATION, MEASURED = "validation.json", "measured.csv.gz"
_FILES = (
    SCENARIO, SUMMARY, COMPARISON, REPORT, REQUESTS, STEPS, REST, DECISIONS, VALIDATION, MEASURED, "trace.json",
)  # fmt: skip
SCALARS = ("num_blocks", "block_size", "max_num_seqs", "replicas", "streams")  # of Records
_PICTURES = (".png", ".svg")


def check_target(target: Path) -> None:
    """Refuse a folder with something else in it than what batchlab wrote there. Raises InputError."""
    if not target.is_dir():
        return  # to be made, or to fail on being made
    try:
        names = sorted(path.name for path in target.iterdir() if not is_partial(path.name))
    except OSError as error:
        raise unwritable(target, error) from error
    ours = {*_FILES, PLOTS}
    if (SUMMARY in names and SCENARIO in names) or COMPARISON in names or ours.issuperset(names):
        return
    other = next(name for name in names if name not in ours)
    raise InputError(
        f"the folder {target} is not empty and holds no earlier run of batchlab: {other} is in it",
        hint="choose an empty or a new folder with --out",
    )


def owned_files(target: Path) -> list[str]:
    """What an earlier run or comparison may have left in `target`, as paths relative to it."""
    folders = [Path(), *_compared(target)]
    owned = [str(folder / name) for folder in folders for name in _FILES]
    return owned + [name for folder in folders for name in _pictures(target, folder)]


def report_files(target: Path) -> list[str]:
    """What an earlier report may have left in `target`, as paths relative to it."""
    return [REPORT, *_pictures(target, Path())]


def write_run(
    folder: Path,
    *,
    scenario_yaml: str,
    summary: Mapping[str, object],
    records: Records,
    decisions: Iterable[Mapping[str, object]] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write a run's files into an existing folder; `notes` are kept for a report that is drawn later.

    Raises InputError where the disk does not take them.
    """
    try:
        (folder / SCENARIO).write_text(scenario_yaml, encoding="utf-8", newline="\n")
        (folder / SUMMARY).write_text(to_json(summary), encoding="utf-8", newline="\n")
        write_csv(folder / REQUESTS, request_columns(records))
        write_csv(folder / STEPS, step_columns(records))
        _write_rest(folder / REST, records, notes)
        if decisions is not None:
            with open_deterministic(folder / DECISIONS) as out:
                for decision in decisions:
                    out.write((json.dumps(decision, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    except OSError as error:
        raise unwritable(folder, error) from error


def run_path(label: str, seed: int) -> Path:
    """Where in a comparison's folder one of its runs is: what no folder's name should hold becomes a dash."""
    return Path(re.sub(r"[^\w.+=-]+", "-", label).strip("-."), f"seed-{seed}")


def write_result(folder: Path, result: Result) -> None:
    """Write a result's files into an existing folder. Raises InputError where the disk does not take them."""
    write_run(
        folder,
        scenario_yaml=result.scenario_yaml,
        summary=result.summary,
        records=result.records,
        decisions=result.decisions,
        notes=result.notes,
    )


def write_means(folder: Path, scenario: Scenario, means: Mapping[str, object]) -> None:
    """Write what stands at the top of a comparison's folder: the scenario common to its runs, and compare.json.

    `means` has an entry a label, whose `runs` are the run folders below. Raises InputError where the disk does not
    take them.
    """
    try:
        (folder / SCENARIO).write_text(dump(scenario), encoding="utf-8", newline="\n")
        (folder / COMPARISON).write_text(to_json(means), encoding="utf-8", newline="\n")
    except OSError as error:
        raise unwritable(folder, error) from error


def write_validation(folder: Path, data: Mapping[str, object], found: Validation) -> None:
    """Write a comparison with a server's log beside the run: validation.json, and its requests beside ours.

    Raises InputError where the disk does not take them.
    """
    try:
        (folder / VALIDATION).write_text(to_json(data), encoding="utf-8", newline="\n")
        write_csv(folder / MEASURED, validation_columns(found))
    except OSError as error:
        raise unwritable(folder, error) from error


def to_json(value: object) -> str:
    """JSON for a person and for `json.loads`: two spaces of indent, a newline at the end."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _pictures(target: Path, folder: Path) -> list[str]:
    plots = target / folder / PLOTS
    if not plots.is_dir():
        return []
    return [str(folder / PLOTS / path.name) for path in sorted(plots.iterdir()) if path.suffix in _PICTURES]


def _compared(target: Path) -> list[Path]:
    """The run folders of the comparison in `target`, relative to it, if it holds one."""
    if not (target / COMPARISON).is_file():
        return []
    return [path.relative_to(target) for path in sorted(target.glob("*/seed-*")) if path.is_dir()]


def _write_rest(path: Path, records: Records, notes: Sequence[str]) -> None:
    about = {
        "format": FORMAT,
        **{name: getattr(records, name) for name in SCALARS},
        "class_names": list(records.class_names),
        "named": records.request_ids is not None,
        "notes": list(notes),
    }
    arrays = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "step_end_s": records.step_end_s,
        "step_used_blocks": records.step_used_blocks,
        "gap_s": records.gaps.gap_s,
        "gap_count": records.gaps.count,
        "gap_end_s": records.gaps.end_s,
        "requeue_row": records.requeues.row,
        "requeue_from_s": records.requeues.from_s,
        "requeue_to_s": records.requeues.to_s,
        "requeue_swapped": records.requeues.swapped,
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            # An entry opened by its name is dated 1980-01-01, always.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                npy.write_array(out, np.ascontiguousarray(array), allow_pickle=False)
