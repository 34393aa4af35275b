"""docs/run-folder.md: every file and column that is written has its meaning, and nothing else has."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from docs.writers import meanings
from docs.writers.run_folder import page
from reports.exports.exported_run import export_files
from scenarios.runs.storage import run_folder
from scenarios.runs.storage.run_folder import own_names
from scenarios.runs.storage.tables import replica_columns, request_columns, step_columns
from simulator.metrics.table import METRICS
from simulator.results.records import CallColumns, LifeColumns, TransferColumns
from simulator.results.shared_prefixes import PrefixColumns
from tests.command import SMALL, batchlab, small
from tests.records_maker import tell

ROOT = Path(__file__).parents[2]
RARE = {"preempted_before", "aborted"}
"""Keys of a decision that an ordinary run has none of."""


def test_the_page_is_as_written() -> None:
    written = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    assert written == page(), "write it again: make pages PAGES=run-folder"


def test_every_file_has_its_meaning() -> None:
    files = {*meanings.TABLES, *meanings.OTHERS, *meanings.ELSEWHERE, *export_files()}
    assert {name.rstrip("/") for name in files} == own_names()
    assert all(f"`{name}`" in page() for name in export_files())


def test_every_column_has_its_meaning() -> None:
    records = tell(3, requests=8).records()
    count = len(records.requests.row)
    calls = CallColumns(np.ones(count, np.int64), np.arange(count), np.full(count, np.nan))
    full = replace(records, calls=calls, session_ids=(None,) * count, turns=np.ones(count, np.int64))
    assert list(meanings.REQUESTS) == list(request_columns(full))
    assert list(meanings.STEPS) == list(step_columns(full))
    assert list(meanings.REPLICAS) == list(replica_columns(full))
    assert list(meanings.LIVES) == [field.name for field in fields(LifeColumns)]
    assert list(meanings.PREFIXES) == [field.name for field in fields(PrefixColumns)]
    assert list(meanings.TRANSFERS) == [field.name for field in fields(TransferColumns)]


def test_what_a_run_writes_has_its_meaning(tmp_path: Path) -> None:
    text = SMALL.replace("max_num_seqs: 8", "async_scheduling: true, max_num_seqs: 8") + "front_end: {fixed_s: 0.01}\n"
    done = batchlab("run", small(tmp_path, text), "--log-decisions", "--out", "run", "--quiet", cwd=tmp_path)
    assert done.code == 0, done.err
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} <= {*meanings.TABLES, *meanings.OTHERS}
    with np.load(folder / run_folder.REST) as arrays:
        assert set(arrays.files) == set(meanings.ARRAYS)
    with gzip.open(folder / run_folder.DECISIONS, "rt") as file:
        keys = {key for line in file for key in json.loads(line)}
    assert keys == set(meanings.DECISIONS) - RARE
    behind = {"groups", "slo_met", "slo_targets", "warmup", "provenance"}
    assert set(json.loads((folder / "summary.json").read_text())) - set(METRICS) <= behind
    assert all(f"`{key}`" in page() for key in behind)
