import pickle
import tempfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from simulator import columns
from simulator.columns import Column, joined
from simulator.errors import InputError
from simulator.results import records as record_columns
from simulator.results.buffers import Series, Table
from simulator.results.recorder import Recorder
from simulator.results.records import Records
from simulator.timing.cost import StepShape
from simulator.workload import Workload

NAMES = ("row", "start_s", "count")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of more than 200 bytes lie in files, and 7 numbers are looked at together."""
    monkeypatch.setattr(columns, "KEPT_BYTES", 200)
    monkeypatch.setattr(columns, "PIECE", 7)
    monkeypatch.setattr(record_columns, "PIECE", 7)


def test_a_long_column_lies_in_a_file_and_reads_as_it_was_added(short: None) -> None:
    parts = [np.arange(i, i + 9) for i in range(0, 63, 9)]
    column = joined(parts)
    assert column.in_file
    assert np.array_equal(column.open(), np.arange(63))
    assert column.open().dtype == np.int64
    assert [len(piece) for piece in column.pieces()] == [7] * 9
    assert not joined(parts[:2]).in_file


def test_zeros_are_not_stored_until_something_else_comes(short: None) -> None:
    column = joined([np.zeros(500)] * 3)
    assert not column.in_file
    assert column.open().strides == (0,)
    assert np.array_equal(column.open(), np.zeros(1500))
    column.add(np.array([-0.0, 2.5]))
    assert column.in_file
    assert np.array_equal(column.open(), [0.0] * 1501 + [2.5])
    assert np.signbit(column.open()).tolist().index(True) == 1500  # the zero with a sign is kept
    nothing = joined([np.zeros(0, dtype=np.int64)])
    assert (len(nothing), nothing.open().dtype) == (0, np.int64)


def test_a_column_can_be_sent_to_another_process(short: None) -> None:
    for column in (joined([np.arange(100)]), joined([np.zeros(100)]), joined([np.arange(3)])):
        assert np.array_equal(pickle.loads(pickle.dumps(column)).open(), column.open())
    series = Series("d")
    series.extend([1.0, 2.0])
    again = pickle.loads(pickle.dumps(series))
    again.extend([3.0])
    assert again.column().open().tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("cut_rows", [1, 3, 100])
def test_counts_beyond_32_bits_are_kept_in_64(short: None, cut_rows: int) -> None:
    records = [(i, i / 2, count) for i, count in enumerate([5, -1, 2**31 - 1, 2**31, 7, -(2**40), 3] * 9)]
    table = Table(NAMES, cut_rows)
    for row in records:
        table.add(row)
    assert len(table) == len(records)
    found = table.columns()
    for name, wanted in zip(NAMES, zip(*records, strict=True), strict=True):
        assert tuple(found[name].tolist()) == wanted
        assert found[name].dtype == (np.float64 if name == "start_s" else np.int64)
        for start in range(0, len(records), 4):
            assert tuple(table.part(start, start + 4)[name].tolist()) == wanted[start : start + 4]
    with pytest.raises(Exception, match=r"format|argument"):
        table.add((1, 0.0, 2**63))  # in 64 bits there is no wrapping round either


def test_one_table_after_another() -> None:
    one, other = Table(NAMES), Table(NAMES)
    for table, count in ((one, 1), (other, 2**33), (one, 3)):
        table.add((count, 0.5, count))
    one.extend(pickle.loads(pickle.dumps(other)))
    one.add((4, 0.5, 4))
    assert one.columns()["count"].tolist() == [1, 3, 2**33, 4]


def run(**engine: Any) -> Records:
    lengths = {"dist": "normal", "mean": 60, "sd": 30, "min": 2}
    one_class = {"name": "all", "arrival": {"process": "poisson", "rate": 40}, "input": lengths, "output": lengths}
    scenario = {
        "name": "short",
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200", "num_gpu_blocks": 60},
        "cost": {"kind": "linear", "base_s": 0.006, "per_token_s": 2e-5, "per_context_token_s": 2e-8},
        "workload": {"requests": 120, "classes": [one_class]},
        "engine": {"max_num_seqs": 16, **engine},
        "replicas": 2,
    }
    return scenarios.run(scenario).records


def folder(records: Records, path: Path) -> dict[str, bytes]:
    from scenarios.runs.storage.run_folder import write_run
    from simulator.metrics.summary import summarize

    path.mkdir()
    write_run(path, scenario_yaml="", summary=summarize(records), records=records)
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("policy", ["chunked_prefill", "preemptive", "static"])
def test_a_run_in_files_writes_the_same_bytes(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = folder(run(policy=policy), tmp_path / "memory")
    for module in (columns, record_columns):
        monkeypatch.setattr(module, "PIECE", 7)
    monkeypatch.setattr(columns, "KEPT_BYTES", 200)
    records = run(policy=policy)
    assert {"start_s", "decoding"} <= set(records.rows._in_files)
    assert {"step_end_s", "step_used_blocks"} == set(records._in_files)
    assert folder(records, tmp_path / "files") == plain
    for again in (deepcopy(records), pickle.loads(pickle.dumps(records))):
        assert np.array_equal(again.rows.decoding, records.rows.decoding)
        assert np.array_equal(again.step_end_s, records.step_end_s)
    with pytest.raises(AttributeError, match="RowColumns has no decodings"):
        getattr(records.rows, "decodings")  # noqa: B009  mypy knows that it is not there


def test_a_long_workload_in_files_holds_the_same_requests(short: None) -> None:
    rng = np.random.default_rng(0)
    inputs, outputs, caps = (rng.integers(1, 99, 50) for _ in range(3))
    zeros = np.zeros(50, dtype=np.int64)
    plain = Workload(rng.random(50).cumsum(), inputs, outputs, caps, zeros, zeros, predicted_output_tokens=caps)
    long = plain.in_files()
    assert {"arrival_s", "input_tokens", "predicted_output_tokens"} <= set(long._in_files)
    assert not {"priority", "class_index"} & set(long._in_files)  # zeros take no place at all
    assert list(long.requests()) == list(plain.requests())
    assert list(pickle.loads(pickle.dumps(long)).requests()) == list(plain.requests())
    assert [long.request(row) for row in (0, 49)] == [plain.request(row) for row in (0, 49)]
    waiting = replace(plain, after_row=zeros - 1)
    assert waiting.in_files() is waiting  # requests that follow answers are looked up one by one


def test_a_full_disk_is_bad_input(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full.open("wb", buffering=0))
    column = Column()
    with pytest.raises(InputError, match=r"a long run keeps its columns in files, and .* does not take them"):
        column.add(np.arange(100))


def test_a_recorder_can_be_sent_to_another_process() -> None:
    """It says itself how, as the compiled one has to."""
    recorder = Recorder(2)
    for number, replica in enumerate(recorder.replicas):
        replica.row(0.5, 1, 0, StepShape(1, 10 + number))
        replica.odd(1, 0, 0, 0, 0, 0, 0, 0)
        replica.steps([1.0, 2.0 + number], [3, 4])
        replica.requeues.add((number, 0.5, 1.0, 0))
    there = pickle.loads(pickle.dumps(recorder))
    here = Recorder(2)
    here.take_over(there, [1])
    assert (here.replicas[0].num_rows, here.replicas[1].num_rows, here.end_s()) == (0, 1, 3.0)
    assert here.replicas[1].rows.columns()["decode_context"].tolist() == [11]
    assert here.replicas[1].odd_rows.columns()["idle_slots"].tolist() == [1]
    assert here.replicas[1].requeues.columns()["row"].tolist() == [1]
    assert here.replicas[1].step_end_s.column().open().tolist() == [1.0, 3.0]
    there.watch(lambda live, replica, status: None)
    there.tell(3)
    assert there.ended == 3
