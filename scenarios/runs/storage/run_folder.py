"""A run folder: the names of its files, written whole or not at all, and read back to the last bit."""

from __future__ import annotations

import csv
import difflib
import filecmp
import gzip
import json
import os
import re
import shutil
import signal
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from scenarios.runs.storage.run_tables import (
    REPLICA_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    Column,
    Columns,
    calls_from,
    columns_from,
    open_deterministic,
    parts,
    plain_columns,
    read_csv,
    replica_columns,
    request_columns,
    requests_from,
    sessions_from,
    step_columns,
    write_csv,
    write_parts,
)
from scenarios.schema.loader import dump
from scenarios.show import export_files
from simulator.columns import described, pieces_of
from simulator.errors import InputError
from simulator.results.records import (
    AdapterColumns,
    CopyColumns,
    DraftColumns,
    GapColumns,
    GroupSizes,
    LifeColumns,
    PassageColumns,
    Records,
    RegretColumns,
    RequestColumns,
    RequeueColumns,
    RowColumns,
    TransferColumns,
)
from simulator.results.shared_prefixes import PrefixColumns

if TYPE_CHECKING:
    from scenarios.schema.scenario import Scenario


# Write a folder whole or not at all.
#
# Files are made in a hidden folder inside the target and moved to their places at the end, each move atomic, with
# Ctrl-C held back for those few milliseconds. If anything goes wrong before, the target looks as it did.

PARTIAL = ".partial-"
REPLACE = "--overwrite (in Python overwrite=True) replaces them, --out writes somewhere else"


@contextmanager
def staging(target: Path, *, replace: Iterable[str] | None = None) -> Iterator[Path]:
    """Yield a fresh folder to write into; at the end its files move to `target`.

    Without `replace`, nothing in `target` changes: the block may add files, and write equal ones again. If one would
    change, that is an InputError, and none is moved. With it, files of the same names are replaced, and the paths of
    `replace` that the block did not write are removed. All else in `target` stays. Raises InputError at once where
    `target` cannot be written.
    """
    made = _make_folder(target)
    folder = target / f"{PARTIAL}{os.getpid()}"
    try:
        with disk_errors(target):
            folder.mkdir()
        yield folder
        files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        if replace is None:
            _refuse_changes(folder, target, files)
        with _no_interrupt():
            _move(folder, target, files, () if replace is None else replace)
        made = []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for path in made:
            with suppress(OSError):  # another process put a file into it
                path.rmdir()


def is_partial(name: str) -> bool:
    """Return whether a name is that of a staging folder, which a killed process leaves behind."""
    return name.startswith(PARTIAL)


def unwritable(target: Path, error: OSError) -> InputError:
    """Return the error for a folder that cannot be written; a staging folder is named by its target."""
    for path in (target, *target.parents):
        if is_partial(path.name):
            target = path.parent
    reason = "it is a file" if target.is_file() else error.strerror or str(error)
    return InputError(f"cannot write to the folder {target}: {reason}", hint="choose another one with --out")


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raise InputError for what the disk refuses inside the block."""
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from error


def _make_folder(target: Path) -> list[Path]:
    """Make `target` and the folders above it. Returns those that were missing, innermost first."""
    missing = []
    path = target
    try:
        while not path.exists():
            missing.append(path)
            path = path.parent
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        for made in missing:
            with suppress(OSError):
                made.rmdir()
        raise unwritable(target, error) from error
    return missing


def _refuse_changes(folder: Path, target: Path, files: Sequence[Path]) -> None:
    """Raise InputError for a file that is in `target` with another content."""
    there = [name for name in files if (target / name).exists()]
    changed = [name for name in there if not filecmp.cmp(folder / name, target / name, shallow=False)]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        what = f"{target} holds other results of the same name: {changed[0]}{more} would change"
        raise InputError(f"{what}; nothing was written", hint=REPLACE)


def _move(folder: Path, target: Path, files: Sequence[Path], replace: Iterable[str]) -> None:
    stale = [target / name for name in replace if Path(name) not in files]
    with disk_errors(target):
        for path in stale:
            path.unlink(missing_ok=True)
        for name in files:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).replace(target / name)
    emptied = {parent for path in stale for parent in path.parents if target in parent.parents}
    for empty in sorted(emptied, reverse=True):
        with suppress(OSError):  # not empty, or never there
            empty.rmdir()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    held = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _frame: pressed.append(number)) for number in held]
    try:
        yield
    finally:
        for number, handler in zip(held, before, strict=True):
            signal.signal(number, handler)
    for first in pressed[:1]:
        signal.raise_signal(first)


FORMAT = 1  # of the files; a folder of another one is refused
SCENARIO, SUMMARY, COMPARISON, REPORT, PLOTS = "scenario.yaml", "summary.json", "compare.json", "report.html", "plots"
REQUESTS, STEPS, REST, DECISIONS = "requests.csv.gz", "steps.csv.gz", "records.npz", "decisions.jsonl.gz"
REPLICAS = "replicas.csv.gz"  # of a run with several
LIVES = "lives.csv.gz"  # of replicas whose number changes
DRAFTS = "drafts.csv.gz"  # of requests: how many drafts were verified and accepted
TRANSFERS = "transfers.csv.gz"  # of KV that was prefilled elsewhere
COPIES = "copies.csv.gz"  # of KV between GPUs and host
PASSAGES = "passages.csv.gz"  # of requests that came to a gateway with flow control: their wait there, how they left
REGRETS = "regrets.csv.gz"  # of requests whose router was asked for its regret: what the best replica had
ADAPTERS = "adapters.csv.gz"  # of requests that ask for one: which had to be loaded, how long requests were shut out
PREFIXES = "prefixes.csv.gz"  # that prompts share, where a prefix cache found any
ARRIVALS = "arrivals.jsonl.gz"  # of `serve`: the requests that came, as a trace
VALIDATION, MEASURED = "validation.json", "measured.csv.gz"  # beside a run: a server's log of the same requests
LOCKSTEP, LOCKSTEP_STEPS, FREE_RUNNING = "lockstep.json", "lockstep.csv", "free-running.json"
MEASUREMENT, ROWS = "measured.json", "rows.jsonl.gz"  # of `calibrate measure`
STUDY, POINTS, TABLE, PARQUET = "study.yaml", "points", "table.csv", "table.parquet"  # of a sweep
EXPLANATION = "explain.json"  # findings of a run, and their remedies tried
PLAN, CANDIDATES, DEPLOY = "plan.json", "candidates", "deploy"  # of a plan
SEARCH, TRIALS, POLICY = "search.json", "trials.csv", "policy.py"  # of `search`
SCHEDULER = "vllm_scheduler.py"  # of `search`, where vLLM's scheduler is to have an order of its own
EXPERIMENT, COMMANDS = "bench-plan.json", "commands.sh"  # of `bench-plan`
EXPERIMENT_RUNS = ("low", "high")
DECISION_KEYS: Columns = {
    "replica": ("", "the number of the replica"),
    "step": ("", "counts the replica's steps from 0"),
    "t_schedule_s": ("s", "when it was planned; with asynchronous scheduling only"),
    "t_start_s": ("s", "when it started"),
    "t_end_s": ("s", "when it ended"),
    "scheduled": ("{id: tokens}", "the tokens computed for each request, padding not counted"),
    "admitted": ("{id: tokens}", "requests that came in, with the tokens found in the prefix cache"),
    "preempted": ("[ids]", "that lost their place, in order"),
    "swapped_out": ("[ids]", "of these, whose KV moved to the host"),
    "swapped_in": ("[ids]", "whose KV came back"),
    "running": ("[ids]", "that hold a slot"),
    "held": ("", "whether prompts were held back; with `prefill_schedule_interval`"),
    "dummy": ("", "whether the rank computed a dummy batch; of replicas that step in waves"),
    "preempted_before": ("[ids]", "victims of plans that computed nothing and so were no step; where there are any"),
    "finished": ("[ids]", "that have all their tokens after it"),
    "waiting": ("[ids]", "in the queue, in order"),
    "num_free_blocks": ("blocks", "free after the decision"),
    "num_free_blocks_end": ("blocks", "free after the step"),
    "aborted": ("[ids]", "that their clients gave up meanwhile; where there are any"),
}

_ARRAYS: Mapping[str, tuple[str, str, str]] = {
    "step_end_s": ("s", "the end of every single step, in the order of the rows of steps.csv.gz", "step_end_s"),
    "step_used_blocks": ("blocks", "in use during every single step", "step_used_blocks"),
    "gap_s": ("s", "gaps between neighbouring tokens of a request that no row holds", "gaps.gap_s"),
    "gap_count": ("requests", "that had the gap; -1 takes one back, of a token that an abort dropped", "gaps.count"),
    "gap_end_s": ("s", "when it ended", "gaps.end_s"),
    "requeue_row": ("", "row of a request that was preempted: an entry a preemption", "requeues.row"),
    "requeue_from_s": ("s", "when it lost its place", "requeues.from_s"),
    "requeue_to_s": ("s", "when it had one again; NaN: never", "requeues.to_s"),
    "requeue_swapped": ("", "1: its KV was on the host, 0: thrown away", "requeues.swapped"),
    "front_end_s": (
        "s",
        "what lies between the engine and each request's client; where that is modelled",
        "front_end_s",
    ),
}
"""Unit and meaning of the arrays of records.npz, and where `Records` has each."""
ARRAYS: Columns = {
    "about": ("", "JSON as bytes: the format's number, blocks, slots, classes, groups, notes"),
    **{name: (unit, meaning) for name, (unit, meaning, _) in _ARRAYS.items()},
}

RARE: Mapping[str, tuple[str, type[Any], str]] = {
    LIVES: ("lives", LifeColumns, "A row a life of a replica, where an autoscaler changes their number."),
    TRANSFERS: ("transfers", TransferColumns, "A row a request whose KV moved, where prefill and decode are apart."),
    DRAFTS: (
        "drafts",
        DraftColumns,
        "A row for each request, number of drafts and number of accepted ones, where tokens are drafted.",
    ),
    COPIES: ("copies", CopyColumns, "A row a copy of KV between the GPUs and their host, where KV is offloaded."),
    ADAPTERS: ("adapters", AdapterColumns, "A row each time that a request with an adapter enters the batch."),
    PASSAGES: ("passages", PassageColumns, "A row a request, as they left the gateway, with `flow_control`."),
    REGRETS: ("regrets", RegretColumns, "A row a request, in the order of the choices, with `router: {regret: true}`."),
}
"""Tables that few runs have: where `Records` has the columns, None in the other runs, their class, and what they hold.

A new table of this kind is an entry here."""

TABLES: Mapping[str, tuple[str, Columns]] = {
    REQUESTS: (
        "A row a request, in the order of the workload. It is a trace too: `trace inspect` reads it.",
        REQUEST_COLUMNS,
    ),
    STEPS: ("A row a step, or a run of equal decode steps. Counts are those of the row's first step.", STEP_COLUMNS),
    REPLICAS: ("A row a replica, where there are several.", REPLICA_COLUMNS),
    **{file: (what, described(kind)) for file, (_, kind, what) in RARE.items()},
    PREFIXES: (
        "A row a stretch of tokens that two prompts or more begin with, where a prefix cache found any: a tree.",
        described(PrefixColumns),
    ),
    DECISIONS: ("An object a step, with `--log-decisions`. Ids are `request_id`s.", DECISION_KEYS),
    REST: (
        "What pictures need beyond the tables: numpy arrays, read by `numpy.load`. Not meant for other programs.",
        ARRAYS,
    ),
}
"""By file of a run: what it holds, and its columns, keys or arrays."""

RUN_FILES: Mapping[str, str] = {
    SCENARIO: "the scenario with every default written out; `batchlab run` on it gives the same bytes",
    SUMMARY: "the figures of the run, below",
    REPORT: "one page with verdict, tables and pictures (`--report`, `report`, `compare`); nothing is fetched",
    f"{PLOTS}/": "the pictures of the report, each as PNG and SVG",
    ARRIVALS: "the requests that came to `serve`, as a native trace",
    EXPLANATION: "findings and tried remedies, of `explain --out`",
    VALIDATION: "errors against a server's log, of `validate`",
    MEASURED: "the server's requests beside the simulated ones, of `validate`",
}
"""By file or folder of a run: what else may be there."""

OTHER_FILES: Mapping[str, str] = {
    COMPARISON: "`compare`: means over seeds with intervals, by label; the runs are in `LABEL/seed-N/`",
    STUDY: "`sweep`: the study, resolved",
    TABLE: "`sweep`: a row a point and seed: the varied keys, `seed`, the keys of summary.json, `error`",
    PARQUET: "`sweep`: the same as parquet, where pyarrow is installed",
    f"{POINTS}/": "`sweep`: each run's outcome by its content, for resuming",
    PLAN: "`plan`: the answer, as `--json` prints it",
    f"{CANDIDATES}/": "`plan`: a scenario for each of the best candidates",
    f"{DEPLOY}/": "`plan`: what starts the servers of each: `N/command.sh`, `compose.yaml`, `kubernetes.yaml`, ...",
    SEARCH: "`search`: the answer, as `--json` prints it",
    TRIALS: "`search`: a row a candidate: its settings, how far it came, and the objective in each round",
    POLICY: "`search`: the policy to take, which runs as `engine.policy: policy.py:Found`",
    SCHEDULER: "`search`: the order of the queue as a class for vLLM's `--scheduler-cls`",
    EXPERIMENT: "`bench-plan`: the two runs on a real server, and what to expect of them",
    COMMANDS: "`bench-plan`: the commands of the server, the benchmarks and `validate`",
    **{f"{name}.jsonl": f"`bench-plan`: the requests of the {name} run" for name in EXPERIMENT_RUNS},
    **{f"{name}.yaml": f"`bench-plan`: the scenario of the {name} run, for `validate`" for name in EXPERIMENT_RUNS},
    LOCKSTEP: "`lockstep`: predicted against measured, in figures",
    LOCKSTEP_STEPS: "`lockstep`: the same, a row a step",
    FREE_RUNNING: "`lockstep --free-running`: both clocks run freely",
    MEASUREMENT: "`calibrate measure`: what was measured on which device",
    ROWS: "`calibrate measure`: a row a kernel or step",
}
"""By file of other verbs' folders: what it is."""
_FILES = tuple(name for name in (*TABLES, *RUN_FILES, *OTHER_FILES) if not name.endswith("/"))
SCALARS = ("num_blocks", "block_size", "max_num_seqs", "replicas", "streams")  # of Records
_PICTURES = (".png", ".svg")


def own_names() -> frozenset[str]:
    """The names of all files and folders that batchlab writes at the top of a folder."""
    return frozenset({*_FILES, PLOTS, POINTS, CANDIDATES, DEPLOY}) | export_files()


def owned_files(target: Path) -> list[str]:
    """The files that earlier results may have in `target`, as paths relative to it."""
    folders = [Path(), *compared_runs(target)]
    owned = [str(folder / name) for folder in folders for name in _FILES]
    others = [
        folder / path.name for folder in folders if (target / folder).is_dir() for path in _others(target / folder)
    ]
    if others:  # only then: all formats are imported
        owned += [str(path) for path in others if path.name in export_files()]
    return owned + [name for folder in folders for name in _pictures(target, folder)]


def _others(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file() and path.name not in _FILES]


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
    """Write a run's files into an existing folder. Raises InputError where the disk does not take them.

    `notes` are kept for a report that is drawn later. `cuts` are those that the summary was made with, for the table
    of the replicas of a fleet; `prefixes` are the tokens that prompts share.
    """
    with disk_errors(folder):
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


def run_path(label: str, seed: int) -> Path:
    """The folder of a run, relative to that of its comparison: what fits into no file name becomes a dash."""
    return Path(re.sub(r"[^\w.+=-]+", "-", label).strip("-."), f"seed-{seed}")


def run_tables(records: Records, cuts: Mapping[str, float] | None = None) -> dict[str, dict[str, Column]]:
    """The tables of a run by file name; `cuts` are those that the summary was made with."""
    return {REQUESTS: request_columns(records), STEPS: step_columns(records), **_few(records, cuts)}


def _few(records: Records, cuts: Mapping[str, float] | None) -> dict[str, dict[str, Column]]:
    """Return the short tables."""
    tables: dict[str, dict[str, Column]] = {}
    if records.replicas > 1:
        tables[REPLICAS] = replica_columns(records, **(cuts or {}))
    rare = {file: getattr(records, name) for file, (name, _, _) in RARE.items()}
    return tables | {file: plain_columns(columns) for file, columns in rare.items() if columns is not None}


def compared_runs(target: Path) -> list[Path]:
    """The run folders of the comparison in `target`, relative to it; none where it holds none."""
    if not (target / COMPARISON).is_file():
        return []
    return [path.relative_to(target) for path in sorted(target.glob("*/seed-*")) if path.is_dir()]


def write_means(folder: Path, scenario: Scenario, means: Mapping[str, object]) -> None:
    """Write the top of a comparison's folder: the scenario that its runs share, and compare.json.

    `means` has an entry for each label. Its `runs` are the run folders below. Raises InputError as `write_run` does.
    """
    with disk_errors(folder):
        (folder / SCENARIO).write_text(dump(scenario), encoding="utf-8", newline="\n")
        (folder / COMPARISON).write_text(to_json(means), encoding="utf-8", newline="\n")


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
    arrays: dict[str, Callable[[], NDArray[Any]]] = {
        "about": lambda: np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        **{name: partial(attrgetter(place), records) for name, (_, _, place) in _ARRAYS.items()},
    }
    if isinstance(records.front_end_s, float):
        del arrays["front_end_s"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            # Deflate takes a fifth of the bytes of random digits, and a quarter of the time for the whole folder.
            archive.compression = zipfile.ZIP_STORED if name.endswith("_s") else zipfile.ZIP_DEFLATED
            # An entry opened by its name is dated 1980-01-01, always.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                _write_array(out, array)


def _write_array(out: IO[bytes], array: Callable[[], NDArray[Any]]) -> None:
    """Write a column as numpy's `write_array` does, with one piece of it in memory at a time."""
    npy.write_array_header_1_0(out, npy.header_data_from_array_1_0(array()))
    for piece in pieces_of(array):
        out.write(piece.tobytes())


# Read run folders: the `Records` that were written, to the last bit.

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
