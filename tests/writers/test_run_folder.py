"""docs/run-folder.md: every file and column that is written is told, and nothing else is."""

import gzip
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from docs.writers.run_folder import page
from reports.exports.exported_run import export_files
from scenarios.runs.storage import run_folder
from scenarios.runs.storage.run_folder import own_names
from scenarios.runs.storage.run_tables import (
    REPLICA_COLUMNS,
    REQUEST_COLUMNS,
    STEP_COLUMNS,
    replica_columns,
    request_columns,
    step_columns,
)
from simulator.columns import described
from simulator.metrics.summary import METRICS
from simulator.results.records import CallColumns, LifeColumns, TransferColumns
from simulator.results.shared_prefixes import PrefixColumns
from tests.command import SMALL, batchlab, small
from tests.records_maker import tell

ROOT = Path(__file__).parents[2]
RARE = {"preempted_before", "aborted", "held", "dummy"}
"""Keys of a decision that an ordinary run has none of."""


def test_the_page_is_as_written() -> None:
    written = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    assert written == page(), "write it again: make pages PAGES=run-folder"


def test_every_file_is_told() -> None:
    files = {*run_folder.TABLES, *run_folder.RUN_FILES, *run_folder.OTHER_FILES, *export_files()}
    assert {name.rstrip("/") for name in files} == own_names()
    assert all(f"`{name}`" in page() for name in export_files())


def test_every_column_is_told() -> None:
    records = tell(3, requests=8).records()
    count = len(records.requests.row)
    calls = CallColumns(np.ones(count, np.int64), np.arange(count), np.full(count, np.nan))
    ones, nones = np.ones(count, np.int64), (None,) * count
    full = replace(records, calls=calls, session_ids=nones, turns=ones, task_ids=nones, task_requests=ones)
    assert list(REQUEST_COLUMNS) == list(request_columns(full))
    assert list(STEP_COLUMNS) == list(step_columns(full))
    assert list(REPLICA_COLUMNS) == list(replica_columns(full))
    assert list(described(LifeColumns)) == [field.name for field in fields(LifeColumns)]
    assert list(described(PrefixColumns)) == [field.name for field in fields(PrefixColumns)]
    assert list(described(TransferColumns)) == [field.name for field in fields(TransferColumns)]


def test_what_a_run_writes_is_told(tmp_path: Path) -> None:
    text = SMALL.replace("max_num_seqs: 8", "async_scheduling: true, max_num_seqs: 8") + "front_end: {fixed_s: 0.01}\n"
    done = batchlab("run", small(tmp_path, text), "--log-decisions", "--out", "run", "--quiet", cwd=tmp_path)
    assert done.code == 0, done.err
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} <= {*run_folder.TABLES, *run_folder.RUN_FILES}
    with np.load(folder / run_folder.REST) as arrays:
        assert set(arrays.files) == set(run_folder.ARRAYS)
    with gzip.open(folder / run_folder.DECISIONS, "rt") as file:
        keys = {key for line in file for key in json.loads(line)}
    assert keys == set(run_folder.DECISION_KEYS) - RARE
    behind = {"groups", "slo_met", "slo_targets", "warmup", "provenance"}
    assert set(json.loads((folder / "summary.json").read_text())) - set(METRICS) <= behind
    assert all(f"`{key}`" in page() for key in behind)
