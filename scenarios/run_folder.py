"""The run folder: what a run leaves on disk, written whole or not at all, and read back as the same `Records`.

`requests.csv.gz` and `steps.csv.gz` are the two tables, for people and for other tools. `records.npz` holds the rest
that plots need: the end and the used blocks of every single step, also of those folded into one row, the gaps
between tokens, the waits after preemption. Nothing in a folder tells when it was written: equal runs, equal bytes.
"""

from __future__ import annotations

import csv
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.lib import format as npy

from scenarios.loader import dump
from scenarios.staging import is_partial, unwritable
from scenarios.tables import (
    open_deterministic,
    read_csv,
    request_columns,
    requests_from,
    rows_from,
    step_columns,
    write_csv,
)
from simulator.errors import InputError
from simulator.records import GapColumns, Records, RequestColumns, RequeueColumns, RowColumns

if TYPE_CHECKING:
    from scenarios.result import Result
    from scenarios.schema import Scenario

T = TypeVar("T")

FORMAT = 1  # of the files; a folder of another one is refused
SCENARIO, SUMMARY, COMPARISON, REPORT, PLOTS = "scenario.yaml", "summary.json", "compare.json", "report.html", "plots"
REQUESTS, STEPS, REST, DECISIONS = "requests.csv.gz", "steps.csv.gz", "records.npz", "decisions.jsonl.gz"
_FILES = (SCENARIO, SUMMARY, COMPARISON, REPORT, REQUESTS, STEPS, REST, DECISIONS, "trace.json")
_SCALARS = ("num_blocks", "block_size", "max_num_seqs", "replicas", "streams")  # of Records
_PICTURES = (".png", ".svg")
_SPOILT = (
    OSError,
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
    csv.Error,
    KeyError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
)


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run folder read back."""

    folder: Path
    scenario_yaml: str
    summary: dict[str, Any]
    records: Records
    notes: tuple[str, ...]


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


def to_json(value: object) -> str:
    """JSON for a person and for `json.loads`: two spaces of indent, a newline at the end."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_run(folder: Path) -> SavedRun:
    """Read a run folder. Raises InputError where it is none, or where a file of it is missing or spoilt."""
    for name in (SCENARIO, SUMMARY, REQUESTS, STEPS, REST):
        if not (folder / name).is_file():
            raise InputError(f"{folder} is no run folder of batchlab: it has no {name}", hint=_HINT)
    scenario_yaml = _read(folder / SCENARIO, lambda path: path.read_text(encoding="utf-8"))
    summary = _read(folder / SUMMARY, lambda path: dict(json.loads(path.read_text(encoding="utf-8"))))
    rest = _read(folder / REST, _read_arrays)
    about = _read(folder / REST, lambda _: _about(rest))
    names = tuple(about["class_names"])
    table = _read(folder / REQUESTS, read_csv)
    requests = _read(folder / REQUESTS, lambda _: requests_from(table, names))
    rows = _read(folder / STEPS, lambda path: rows_from(read_csv(path)))
    parts = (requests, rows, rest, about, names, table)
    records = _read(folder / REST, lambda _: _assemble(*parts))
    return SavedRun(folder, scenario_yaml, summary, records, tuple(about["notes"]))


def read_summary(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Summary and notes of a run folder alone. Raises InputError where they cannot be read."""
    for name in (SUMMARY, REST):
        if not (folder / name).is_file():
            raise InputError(f"{folder} is no run folder of batchlab: it has no {name}", hint=_HINT)
    summary = _read(folder / SUMMARY, lambda path: dict(json.loads(path.read_text(encoding="utf-8"))))
    about = _read(folder / REST, lambda path: _about(_read_arrays(path, "about")))
    return summary, tuple(about["notes"])


def is_comparison(folder: Path) -> bool:
    """Whether `folder` holds a comparison, and not a single run."""
    return (folder / COMPARISON).is_file()


def read_runs(folder: Path) -> dict[str, list[Path]]:
    """A comparison's run folders by label, in the order of the seeds. Raises InputError where it cannot be read."""

    def runs(path: Path) -> dict[str, list[Path]]:
        comparison = json.loads(path.read_text(encoding="utf-8"))
        return {label: [folder / _below(run) for run in entry["runs"]] for label, entry in comparison.items()}

    found = _read(folder / COMPARISON, runs)
    if not found or not all(found.values()):
        raise InputError(f"{folder / COMPARISON} names no runs", hint="the file is spoilt; run the comparison again")
    return found


_HINT = "a run folder is what `batchlab run` and `batchlab compare` write"


def _pictures(target: Path, folder: Path) -> list[str]:
    plots = target / folder / PLOTS
    if not plots.is_dir():
        return []
    return [str(folder / PLOTS / path.name) for path in sorted(plots.iterdir()) if path.suffix in _PICTURES]


def _compared(target: Path) -> list[Path]:
    """The run folders of the comparison in `target`, relative to it, if it holds one that can be read."""
    try:
        runs = read_runs(target)
    except InputError:
        return []
    return [run.relative_to(target) for paths in runs.values() for run in paths]


def _below(run: str) -> Path:
    """A run's path in compare.json, which must not lead out of the folder."""
    path = Path(run)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{run} is not below the folder")
    return path


def _read(path: Path, how: Callable[[Path], T]) -> T:
    try:
        return how(path)
    except _SPOILT as error:
        raise InputError(f"{path} cannot be read: {error}", hint="the file is spoilt; run the scenario again") from None


def _assemble(
    requests: RequestColumns,
    rows: RowColumns,
    rest: Mapping[str, Any],
    about: Mapping[str, Any],
    class_names: tuple[str, ...],
    table: Mapping[str, list[str]],
) -> Records:
    return Records(
        requests=requests,
        rows=rows,
        gaps=GapColumns(gap_s=rest["gap_s"], count=rest["gap_count"]),
        requeues=RequeueColumns(
            row=rest["requeue_row"],
            from_s=rest["requeue_from_s"],
            to_s=rest["requeue_to_s"],
            swapped=rest["requeue_swapped"],
        ),
        step_end_s=rest["step_end_s"],
        step_used_blocks=rest["step_used_blocks"],
        reject_reasons={row: reason for row, reason in enumerate(table["reject_reason"]) if reason},
        class_names=class_names,
        request_ids=tuple(table["request_id"]) if about["named"] else None,
        **{name: about[name] for name in _SCALARS},
    )


def _write_rest(path: Path, records: Records, notes: Sequence[str]) -> None:
    about = {
        "format": FORMAT,
        **{name: getattr(records, name) for name in _SCALARS},
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


def _read_arrays(path: Path, only: str | None = None) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in (archive.files if only is None else [only])}


def _about(arrays: Mapping[str, Any]) -> dict[str, Any]:
    about = dict(json.loads(arrays["about"].tobytes()))
    if about["format"] != FORMAT:
        raise ValueError(f"it was written in format {about['format']}, and this version of batchlab reads {FORMAT}")
    return about
