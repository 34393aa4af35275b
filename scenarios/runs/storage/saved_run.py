"""Read run folders: the `Records` that were written, to the last bit."""

import csv
import difflib
import gzip
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from scenarios.runs.storage.run_folder import (
    COMPARISON,
    FORMAT,
    PREFIXES,
    RARE,
    REQUESTS,
    REST,
    SCALARS,
    SCENARIO,
    STEPS,
    SUMMARY,
)
from scenarios.runs.storage.run_tables import calls_from, columns_from, read_csv, requests_from, sessions_from
from simulator.errors import InputError
from simulator.results.records import GapColumns, GroupSizes, Records, RequestColumns, RequeueColumns, RowColumns
from simulator.results.shared_prefixes import PrefixColumns

T = TypeVar("T")

_UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile)
_SPOILT = (*_UNREADABLE, csv.Error, LookupError, ValueError, TypeError, AttributeError)
_HINT = "a run folder is what `batchlab run` and `batchlab compare` write"


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run folder read back."""

    folder: Path
    scenario_yaml: str
    summary: dict[str, Any]
    records: Records
    notes: tuple[str, ...]
    prefixes: PrefixColumns | None = None


def read_run(folder: Path) -> SavedRun:
    """Read a run folder. Raises InputError for another folder, and where a file is missing or damaged."""
    if folder.is_file():
        raise InputError(f"{folder} is a file, not the folder of a run", hint=_HINT)
    if not folder.is_dir():
        beside = sorted(path.name for path in folder.parent.glob("*") if path.is_dir())
        near = difflib.get_close_matches(folder.name, beside, n=1)
        hint = f"did you mean {folder.parent / near[0]}?" if near else _HINT
        raise InputError(f"no such folder: {folder}", hint=hint)
    _check_files(folder, SCENARIO, SUMMARY, REQUESTS, STEPS, REST)
    scenario_yaml = _read(folder / SCENARIO, lambda path: path.read_text(encoding="utf-8"))
    summary = _read(folder / SUMMARY, _read_object)
    rest = _read(folder / REST, _read_arrays)
    about = _read(folder / REST, lambda _: _about(rest))
    table = _read(folder / REQUESTS, read_csv)
    requests = _read(folder / REQUESTS, lambda _: requests_from(table, tuple(about["class_names"])))
    rows = _read(folder / STEPS, lambda path: columns_from(RowColumns, read_csv(path)))
    records = _read(folder / REST, lambda _: _assemble(requests, rows, rest, about, table))

    def optional(file: str, kind: type[Any]) -> Any:
        path = folder / file
        return _read(path, lambda path: columns_from(kind, read_csv(path))) if path.is_file() else None

    records = replace(records, **{name: optional(file, kind) for file, (name, kind, _) in RARE.items()})
    prefixes = optional(PREFIXES, PrefixColumns)
    return SavedRun(folder, scenario_yaml, summary, records, tuple(about["notes"]), prefixes)


def read_summary(folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the summary and the notes of a run folder alone. Raises InputError where they cannot be read."""
    _check_files(folder, SUMMARY, REST)
    summary = _read(folder / SUMMARY, _read_object)
    about = _read(folder / REST, lambda path: _about(_read_arrays(path, "about")))
    return summary, tuple(about["notes"])


def _check_files(folder: Path, *names: str) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise InputError(f"{folder} is not a run folder of batchlab: it has no {name}", hint=_HINT)


def _read_object(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def is_comparison(folder: Path) -> bool:
    """Return whether `folder` holds a comparison, and not a single run."""
    return (folder / COMPARISON).is_file()


def read_runs(folder: Path) -> dict[str, list[Path]]:
    """Return a comparison's run folders by label, in the order of the seeds. Raises InputError for a damaged file."""

    def runs(path: Path) -> dict[str, list[Path]]:
        return {label: [folder / _below(run) for run in entry["runs"]] for label, entry in _read_object(path).items()}

    found = _read(folder / COMPARISON, runs)
    if not found or not all(found.values()):
        raise InputError(f"{folder / COMPARISON} names no runs", hint="the file is damaged; run the comparison again")
    return found


def single_run(folder: Path, verb: str) -> Path:
    """Return the folder of a single run. Raises InputError for a folder of several, and names these."""
    if not is_comparison(folder):
        return folder
    places = [str(place) for runs in read_runs(folder).values() for place in runs[:1]]
    raise InputError(f"{folder} holds a comparison: {verb} takes one run", hint=f"one of {', '.join(places)}")


def read_decisions(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the steps of a decision log. Raises InputError where one cannot be read."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield dict(json.loads(line))
    except _SPOILT as error:
        raise InputError(f"{path} cannot be read: {error}", hint="damaged; run the scenario again") from None


def _below(run: str) -> Path:
    """Return a run's path in compare.json. Raises ValueError where it leads out of the folder."""
    path = Path(run)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{run} is not below the folder")
    return path


def _read(path: Path, how: Callable[[Path], T]) -> T:
    try:
        return how(path)
    except _SPOILT as error:
        raise InputError(f"{path} cannot be read: {error}", hint="damaged; run the scenario again") from None


def _assemble(
    requests: RequestColumns,
    rows: RowColumns,
    rest: Mapping[str, Any],
    about: Mapping[str, Any],
    table: Mapping[str, Any],
) -> Records:
    if len(rest["step_end_s"]) != rows.repeat.sum() or len(rest["step_used_blocks"]) != rows.repeat.sum():
        raise ValueError(f"{STEPS} has another number of steps")
    return Records(
        requests=requests,
        rows=rows,
        gaps=GapColumns(gap_s=rest["gap_s"], count=rest["gap_count"], end_s=rest["gap_end_s"]),
        requeues=RequeueColumns(**{name: rest[f"requeue_{name}"] for name in ("row", "from_s", "to_s", "swapped")}),
        step_end_s=rest["step_end_s"],
        step_used_blocks=rest["step_used_blocks"],
        reject_reasons={row: reason for row, reason in enumerate(table["reject_reason"]) if reason},
        class_names=tuple(about["class_names"]),
        request_ids=tuple(table["request_id"]) if about["named"] else None,
        calls=calls_from(table),
        **sessions_from(table),
        **{name: about[name] for name in SCALARS},
        groups=tuple(GroupSizes(**group) for group in about.get("groups", ())),
        front_end_s=rest.get("front_end_s", 0.0),
    )


def _read_arrays(path: Path, only: str | None = None) -> dict[str, Any]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in (archive.files if only is None else [only])}


def _about(arrays: Mapping[str, Any]) -> dict[str, Any]:
    about = dict(json.loads(arrays["about"].tobytes()))
    if about["format"] != FORMAT:
        raise ValueError(f"it was written in format {about['format']}, and this version of batchlab reads {FORMAT}")
    return about
