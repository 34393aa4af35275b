"""Run folders: written whole or not at all, the same bytes for the same run, read back to the last bit."""

import csv
import gzip
import io
import json
import math
import signal
import time
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.runs.storage import run_folder
from scenarios.runs.storage.output import check_output
from scenarios.runs.storage.run_folder import (
    is_comparison,
    owned_files,
    read_run,
    read_runs,
    read_summary,
    report_files,
    staging,
    write_run,
)
from scenarios.runs.storage.run_tables import Column, read_csv, request_columns, step_columns, write_csv
from simulator.errors import InputError
from simulator.results.records import Records
from tests.command import tree
from tests.records_maker import tell
from tests.reports_maker import continuous, static

SUMMARY: dict[str, object] = {"completed": 3, "p99_tpot_ms": None, "mean_ttft_ms": 0.1}
YAML = "name: größe\nseed: 0\n"


def save(folder: Path, records: Records, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_run(folder, scenario_yaml=YAML, summary=SUMMARY, records=records, **more)
    return folder


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit: NaN is NaN, -0.0 is not 0.0."""
    if is_dataclass(one):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    return bool(one == other)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("streams", [True, False])
def test_records_come_back_to_the_last_bit(tmp_path: Path, seed: int, streams: bool) -> None:
    records = tell(seed, requests=seed * 3, streams=streams, cut_short=seed % 3 == 0).records()
    saved = read_run(save(tmp_path / "run", records, notes=["one", "zwei"]))
    assert same(saved.records, records)
    assert (saved.scenario_yaml, saved.summary, saved.notes) == (YAML, SUMMARY, ("one", "zwei"))
    assert read_summary(tmp_path / "run") == (SUMMARY, ("one", "zwei"))


@pytest.mark.parametrize("records", [continuous(40, num_blocks=300), static(40, stream=False)])
def test_schedules_come_back(tmp_path: Path, records: Records) -> None:
    assert same(read_run(save(tmp_path, records)).records, records)


def test_comparison_of_records_sees_a_bit() -> None:
    records = continuous(20)
    moved = records.step_end_s.copy()
    moved[3] = math.nextafter(moved[3], 1e9)
    assert not same(replace(records, step_end_s=moved), records)


def test_names_with_commas_quotes_and_line_ends_come_back(tmp_path: Path) -> None:
    records = continuous(4)
    names = ("a,b", 'say "so"', "two\nlines\r\n", "größe 🙂")
    odd = replace(
        records,
        request_ids=names,
        class_names=('c,"l"\r', "unused"),
        reject_reasons={0: "too long, by 3", 3: 'so "they" say'},
    )
    saved = read_run(save(tmp_path, odd)).records
    assert (saved.request_ids, saved.class_names) == (names, odd.class_names)
    assert saved.reject_reasons == odd.reject_reasons


FLOATS = st.floats(allow_infinity=True, allow_nan=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.tuples(FLOATS, st.integers(-(2**63), 2**63 - 1), TEXT), max_size=30))
def test_csv_keeps_every_value(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, int, str]]) -> None:
    path = tmp_path_factory.mktemp("csv") / "table.csv.gz"
    times = np.array([row[0] for row in rows], dtype=np.float64)
    times[np.isnan(times)] = np.nan  # one NaN: which of them it was is not kept
    counts, names = np.array([row[1] for row in rows], dtype=np.int64), [row[2] for row in rows]
    write_csv(path, {"arrival_s": times, "count": counts, "class": names})
    found = read_csv(path)
    assert list(found) == ["arrival_s", "count", "class"]
    assert same(found["arrival_s"], times)
    assert same(found["count"], counts)
    assert found["class"] == names


@given(
    st.lists(
        st.tuples(
            FLOATS, FLOATS.map(lambda x: x % 1e5), st.integers(-9, 9), TEXT.filter(lambda name: "\r" not in name)
        ),
        max_size=30,
    )
)
def test_csv_holds_what_the_standard_library_writes(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, float, int, str]]
) -> None:
    table: dict[str, Column] = {
        "arrival_s": np.array([row[0] for row in rows], dtype=np.float64),
        "replica": np.zeros(len(rows), dtype=np.int64),
        "status": ["finished"] * len(rows),
        "e2el_ms": np.array([row[1] for row in rows], dtype=np.float64),
        "count": np.array([row[2] for row in rows], dtype=np.int64),
        "class": [row[3] for row in rows],
    }
    wanted = io.StringIO()
    writer = csv.writer(wanted, lineterminator="\n")
    writer.writerow(table)
    for long, short, count, name in rows:
        times = ["" if math.isnan(time_s) else repr(time_s) for time_s in (long, short)]
        writer.writerow([times[0], 0, "finished", times[1], count, name])
    path = tmp_path_factory.mktemp("csv") / "table.csv.gz"
    write_csv(path, table)
    assert gzip.decompress(path.read_bytes()) == wanted.getvalue().encode()


def test_floats_are_written_as_repr_writes_them(tmp_path: Path) -> None:
    """Near powers of two and of ten, whose neighbours lie unequally far, and at the ends of what needs no exponent."""
    edges = np.concatenate([2.0 ** np.arange(-1074, 1024), np.array([float(f"1e{i}") for i in range(-323, 309)])])
    draws = np.random.default_rng(0).integers(0, 2**64, 20_000, dtype=np.uint64).view(np.float64)
    seconds = np.random.default_rng(1).random(20_000) * 10.0 ** (np.arange(20_000) % 7)
    values = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf), draws, seconds])
    values = np.concatenate([values, -values])
    write_csv(tmp_path / "table", {"start_s": values})
    lines = gzip.decompress((tmp_path / "table").read_bytes()).decode().split("\n")[1:-1]
    assert lines == ["" if math.isnan(value) else repr(value) for value in values.tolist()]


def test_csv_is_the_same_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = request_columns(continuous(50))
    write_csv(tmp_path / "whole", table)
    monkeypatch.setattr("scenarios.runs.storage.run_tables.CHUNK_ROWS", 7)
    write_csv(tmp_path / "chunks", table)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "chunks").read_bytes()
    assert {name: list(column) for name, column in read_csv(tmp_path / "chunks").items()}.keys() == table.keys()
    assert same(read_csv(tmp_path / "chunks")["last_token_s"], table["last_token_s"])


def test_pandas_reads_the_tables(tmp_path: Path) -> None:
    import pandas as pd

    records = continuous(60, num_blocks=300)
    save(tmp_path, records)
    for name, table in (("requests", request_columns(records)), ("steps", step_columns(records))):
        frame = pd.read_csv(tmp_path / f"{name}.csv.gz")
        assert list(frame.columns) == list(table)
        for column, values in table.items():
            if isinstance(values, np.ndarray):
                np.testing.assert_array_equal(frame[column].to_numpy(), values)


def test_bytes_do_not_tell_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = continuous(30)
    decisions = [{"step": 0, "scheduled": {"a": 1}}]
    save(tmp_path / "a", records, decisions=decisions)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1e8)
    monkeypatch.setattr(time, "localtime", lambda *_: time.struct_time((2031, 1, 2, 3, 4, 5, 3, 2, 0)))
    save(tmp_path / "b", records, decisions=decisions)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert len(tree(tmp_path / "a")) == 6


def test_gzip_header_has_neither_time_nor_name(tmp_path: Path) -> None:
    save(tmp_path, continuous(3))
    for name in ("requests.csv.gz", "steps.csv.gz"):
        head = (tmp_path / name).read_bytes()[:10]
        assert head[3] == 0, "flags: no file name"
        assert head[4:8] == b"\0\0\0\0", "no time"


def test_decisions_are_one_object_a_line(tmp_path: Path) -> None:
    decisions = [{"step": step, "waiting": ["ä"], "t_start_s": 0.1 * step} for step in range(3)]
    save(tmp_path, continuous(3), decisions=decisions)
    text = gzip.decompress((tmp_path / "decisions.jsonl.gz").read_bytes()).decode()
    assert [json.loads(line) for line in text.splitlines()] == decisions
    assert text.endswith("}\n")


# ------------------------------------------------------------------------------------------------------------ staging


def fill(folder: Path) -> None:
    (folder / "summary.json").write_text("new")
    (folder / "plots").mkdir()
    (folder / "plots" / "a.png").write_text("new")


def test_folders_are_made_and_filled(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er"
    with staging(target) as folder:
        fill(folder)
        assert not (target / "summary.json").exists()
    assert set(tree(target)) == {"summary.json", "plots/", "plots/a.png"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, InputError])
def test_nothing_stays_of_what_failed(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with staging(tmp_path / "deep" / "er") as folder:
            fill(folder)
            raise error("no")

    with pytest.raises(error):
        fail()
    assert tree(tmp_path) == {}


def test_an_earlier_run_stays_if_the_new_one_fails(tmp_path: Path) -> None:
    save(tmp_path, continuous(5))
    before = tree(tmp_path)

    def fail() -> None:
        with staging(tmp_path, replace=owned_files(tmp_path)) as folder:
            save(folder, continuous(6))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert tree(tmp_path) == before


def test_a_new_run_replaces_the_old_and_leaves_other_files(tmp_path: Path) -> None:
    save(tmp_path, continuous(5), decisions=[{}])
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "old.png").touch()
    (tmp_path / "plots" / "mine.txt").touch()
    (tmp_path / "report.html").touch()
    (tmp_path / "trace.json").touch()  # of an export
    (tmp_path / "mine.txt").touch()
    check_output(tmp_path, overwrite=True, expected=None)
    with staging(tmp_path, replace=owned_files(tmp_path)) as folder:
        save(folder, continuous(6))
    names = {"scenario.yaml", "summary.json", "requests.csv.gz", "steps.csv.gz", "records.npz"}
    assert set(tree(tmp_path)) == names | {"plots/", "plots/mine.txt", "mine.txt"}
    assert len(read_run(tmp_path).records.requests.row) == 6


def test_formats_of_exports_are_imported_only_for_files_that_may_be_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, continuous(5))
    asked: list[str] = []

    def export_files() -> frozenset[str]:
        asked.append("formats")
        return frozenset({"trace.json"})

    monkeypatch.setattr(run_folder, "export_files", export_files)
    assert "summary.json" in owned_files(tmp_path)
    assert not asked
    (tmp_path / "trace.json").touch()
    assert "trace.json" in owned_files(tmp_path)


def test_a_run_replaces_a_comparison(tmp_path: Path) -> None:
    save(tmp_path / "static" / "seed-0", continuous(5))
    (tmp_path / "compare.json").write_text(json.dumps({"static": {"runs": ["static/seed-0"]}}))
    assert is_comparison(tmp_path)
    check_output(tmp_path, overwrite=True, expected=None)
    with staging(tmp_path, replace=owned_files(tmp_path)) as folder:
        save(folder, continuous(6))
    assert not is_comparison(tmp_path)
    assert set(tree(tmp_path)) == {"scenario.yaml", "summary.json", "requests.csv.gz", "steps.csv.gz", "records.npz"}


def test_a_report_alone_replaces_only_the_report(tmp_path: Path) -> None:
    save(tmp_path, continuous(5))
    (tmp_path / "report.html").write_text("old")
    before = tree(tmp_path)
    with staging(tmp_path, replace=report_files(tmp_path)) as folder:
        (folder / "report.html").write_text("new")
    after = tree(tmp_path)
    assert before.keys() == after.keys()
    assert {name for name in after if after[name] != before[name]} == {"report.html"}


def test_ctrl_c_waits_for_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two files of the move: both are moved, then the interrupt is heard."""
    move = Path.replace

    def pressed(self: Path, target: Path) -> Path:
        signal.raise_signal(signal.SIGINT)
        return move(self, target)

    monkeypatch.setattr(Path, "replace", pressed)

    def write() -> None:
        with staging(tmp_path / "run") as folder:
            save(folder, continuous(5))

    with pytest.raises(KeyboardInterrupt):
        write()
    assert len(read_run(tmp_path / "run").records.requests.row) == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_foreign_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"not empty.*thesis\.tex"):
        check_output(tmp_path, overwrite=False, expected=None)


def test_what_a_killed_run_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".partial-123").mkdir()
    check_output(tmp_path, overwrite=False, expected=None)


# ------------------------------------------------------------------------------------------------------------- spoilt


@pytest.mark.parametrize("name", ["scenario.yaml", "summary.json", "requests.csv.gz", "steps.csv.gz", "records.npz"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, continuous(5))
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["summary.json", "requests.csv.gz", "steps.csv.gz", "records.npz"])
@pytest.mark.parametrize("how", ["empty", "half", "garbage"])
def test_spoilt_files_are_named(tmp_path: Path, name: str, how: str) -> None:
    save(tmp_path, continuous(50))
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes({"empty": b"", "half": data[: len(data) // 2], "garbage": b"\x00\xff{" * 50}[how])
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        read_run(tmp_path)


def test_tables_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a", continuous(50))
    save(tmp_path / "b", continuous(20))
    (tmp_path / "b" / "steps.csv.gz").replace(tmp_path / "a" / "steps.csv.gz")
    with pytest.raises(InputError, match="another number of steps"):
        read_run(tmp_path / "a")


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, continuous(5))
    monkeypatch.setattr("scenarios.runs.storage.run_folder.FORMAT", 2)
    with pytest.raises(InputError, match=r"written in format 1.* reads 2"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": {}}', '{"a": {"runs": []}}', '{"a": {"runs": ["../b"]}}'])
def test_spoilt_comparisons_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(InputError, match=r"compare\.json"):
        read_runs(tmp_path)


def test_tables_are_the_same_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = continuous(50)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name, scenario_yaml="", summary={}, records=records)
        monkeypatch.setattr("scenarios.runs.storage.run_tables.PART_ROWS", 7)
        monkeypatch.setattr("simulator.columns.PIECE", 11)
    for file in (tmp_path / "whole").iterdir():
        assert (tmp_path / "parts" / file.name).read_bytes() == file.read_bytes()
