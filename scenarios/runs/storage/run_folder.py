"""The files of a run folder: their names, and how they are written. `saved_run` reads them back.

`requests.csv.gz` and `steps.csv.gz` are the two tables, for people and for other tools. `records.npz` holds the rest
that plots need: the end and the used blocks of each step, also of steps folded into one row, the gaps between tokens,
the waits after preemption. No file tells when it was written: equal runs, equal bytes.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from scenarios.runs.storage.staging import unwritable
from scenarios.runs.storage.tables import (
    Column,
    open_deterministic,
    parts,
    plain_columns,
    replica_columns,
    request_columns,
    step_columns,
    write_csv,
    write_parts,
)
from scenarios.schema.loader import dump
from scenarios.show import export_files
from simulator.columns import pieces_of
from simulator.results.records import Records
from simulator.results.shared_prefixes import PrefixColumns

if TYPE_CHECKING:
    from scenarios.schema.scenario import Scenario

FORMAT = 1  # of the files; a folder of another one is refused
SCENARIO, SUMMARY, COMPARISON, REPORT, PLOTS = "scenario.yaml", "summary.json", "compare.json", "report.html", "plots"
REQUESTS, STEPS, REST, DECISIONS = "requests.csv.gz", "steps.csv.gz", "records.npz", "decisions.jsonl.gz"
REPLICAS = "replicas.csv.gz"  # of a run with several
LIVES = "lives.csv.gz"  # of replicas whose number changes
TRANSFERS = "transfers.csv.gz"  # of KV that was prefilled elsewhere
PREFIXES = "prefixes.csv.gz"  # that prompts share, where a prefix cache found any
ARRIVALS = "arrivals.jsonl.gz"  # of `serve`: the requests that came, as a trace
VALIDATION, MEASURED = "validation.json", "measured.csv.gz"  # beside a run: a server's log of the same requests
LOCKSTEP, LOCKSTEP_STEPS, FREE_RUNNING = "lockstep.json", "lockstep.csv", "free-running.json"
MEASUREMENT, ROWS = "measured.json", "rows.jsonl.gz"  # of `calibrate measure`
STUDY, POINTS, TABLE, PARQUET = "study.yaml", "points", "table.csv", "table.parquet"  # of a sweep
EXPLANATION = "explain.json"  # findings of a run, and their remedies tried
PLAN, CANDIDATES = "plan.json", "candidates"  # of a plan
_FILES = (
    SCENARIO, SUMMARY, COMPARISON, REPORT, REQUESTS, STEPS, REST, DECISIONS, VALIDATION, MEASURED,
    LOCKSTEP, LOCKSTEP_STEPS, FREE_RUNNING, MEASUREMENT, ROWS, REPLICAS, LIVES, TRANSFERS, PREFIXES, ARRIVALS, STUDY,
    TABLE, PARQUET, EXPLANATION, PLAN,
)  # fmt: skip
SCALARS = ("num_blocks", "block_size", "max_num_seqs", "replicas", "streams")  # of Records
_PICTURES = (".png", ".svg")


def own_names() -> frozenset[str]:
    """The names of all files and folders that batchlab writes at the top of a folder."""
    return frozenset({*_FILES, PLOTS, POINTS, CANDIDATES}) | export_files()


def owned_files(target: Path) -> list[str]:
    """The files that earlier results may have in `target`, as paths relative to it."""
    folders = [Path(), *compared_runs(target)]
    owned = [str(folder / name) for folder in folders for name in (*_FILES, *sorted(export_files()))]
    return owned + [name for folder in folders for name in _pictures(target, folder)]


def report_files(target: Path) -> list[str]:
    """The files of an earlier report in `target`, as paths relative to it."""
    return [REPORT, *_pictures(target, Path())]


def write_run(
    folder: Path,
    *,
    scenario_yaml: str,
    summary: Mapping[str, object],
    records: Records,
    decisions: Iterable[Mapping[str, object]] | None = None,
    notes: Sequence[str] = (),
    cuts: Mapping[str, float] | None = None,
    prefixes: PrefixColumns | None = None,
) -> None:
    """Write a run's files into an existing folder; `notes` are kept for a report that is drawn later.

    `cuts` are those that the summary was made with, for the table of the replicas of a fleet, `prefixes` what prompts
    share.

    Raises InputError where the disk does not take the files.
    """
    try:
        (folder / SCENARIO).write_text(scenario_yaml, encoding="utf-8", newline="\n")
        (folder / SUMMARY).write_text(to_json(summary), encoding="utf-8", newline="\n")
        requests, rows = parts(len(records.requests.row)), parts(len(records.rows.repeat))
        write_parts(folder / REQUESTS, (request_columns(records, part) for part in requests))
        write_parts(folder / STEPS, (step_columns(records, part) for part in rows))
        for name, table in _few(records, cuts).items():
            write_csv(folder / name, table)
        if prefixes is not None:
            write_csv(folder / PREFIXES, plain_columns(prefixes))
        _write_rest(folder / REST, records, notes)
        if decisions is not None:
            with open_deterministic(folder / DECISIONS) as out:
                for decision in decisions:
                    out.write((json.dumps(decision, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    except OSError as error:
        raise unwritable(folder, error) from error


def run_path(label: str, seed: int) -> Path:
    """The folder of a run, relative to that of its comparison: what fits into no file name becomes a dash."""
    return Path(re.sub(r"[^\w.+=-]+", "-", label).strip("-."), f"seed-{seed}")


def run_tables(records: Records, cuts: Mapping[str, float] | None = None) -> dict[str, dict[str, Column]]:
    """The tables of a run by file name; `cuts` are those that the summary was made with."""
    return {REQUESTS: request_columns(records), STEPS: step_columns(records), **_few(records, cuts)}


def _few(records: Records, cuts: Mapping[str, float] | None) -> dict[str, dict[str, Column]]:
    """The tables that are short."""
    tables: dict[str, dict[str, Column]] = {}
    if records.replicas > 1:
        tables[REPLICAS] = replica_columns(records, **(cuts or {}))
    if records.lives is not None:
        tables[LIVES] = plain_columns(records.lives)
    if records.transfers is not None:
        tables[TRANSFERS] = plain_columns(records.transfers)
    return tables


def compared_runs(target: Path) -> list[Path]:
    """The run folders of the comparison in `target`, relative to it; none where it holds none."""
    if not (target / COMPARISON).is_file():
        return []
    return [path.relative_to(target) for path in sorted(target.glob("*/seed-*")) if path.is_dir()]


def write_means(folder: Path, scenario: Scenario, means: Mapping[str, object]) -> None:
    """Write the top of a comparison's folder: the scenario that its runs share, and compare.json.

    `means` has an entry for each label, whose `runs` are the run folders below. Raises InputError where the disk does
    not take the files.
    """
    try:
        (folder / SCENARIO).write_text(dump(scenario), encoding="utf-8", newline="\n")
        (folder / COMPARISON).write_text(to_json(means), encoding="utf-8", newline="\n")
    except OSError as error:
        raise unwritable(folder, error) from error


def to_json(value: object) -> str:
    """Indented JSON that ends with a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _pictures(target: Path, folder: Path) -> list[str]:
    plots = target / folder / PLOTS
    if not plots.is_dir():
        return []
    return [str(folder / PLOTS / path.name) for path in sorted(plots.iterdir()) if path.suffix in _PICTURES]


def _write_rest(path: Path, records: Records, notes: Sequence[str]) -> None:
    about = {
        "format": FORMAT,
        **{name: getattr(records, name) for name in SCALARS},
        "class_names": list(records.class_names),
        "named": records.request_ids is not None,
        "notes": list(notes),
        **({"groups": [asdict(group) for group in records.groups]} if records.groups else {}),
    }
    front_end_s = records.front_end_s
    arrays: dict[str, Callable[[], NDArray[Any]]] = {
        "about": lambda: np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "step_end_s": lambda: records.step_end_s,
        "step_used_blocks": lambda: records.step_used_blocks,
        "gap_s": lambda: records.gaps.gap_s,
        "gap_count": lambda: records.gaps.count,
        "gap_end_s": lambda: records.gaps.end_s,
        "requeue_row": lambda: records.requeues.row,
        "requeue_from_s": lambda: records.requeues.from_s,
        "requeue_to_s": lambda: records.requeues.to_s,
        "requeue_swapped": lambda: records.requeues.swapped,
        **({} if isinstance(front_end_s, float) else {"front_end_s": lambda: front_end_s}),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            # An entry opened by its name is dated 1980-01-01, always.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                _write_array(out, array)


def _write_array(out: IO[bytes], array: Callable[[], NDArray[Any]]) -> None:
    """What numpy's `write_array` writes of a column, of which a piece is in memory at a time."""
    npy.write_array_header_1_0(out, npy.header_data_from_array_1_0(array()))
    for piece in pieces_of(array):
        out.write(piece.tobytes())
