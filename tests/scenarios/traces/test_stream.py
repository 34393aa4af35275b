"""Traces larger than memory: what is in memory does not grow with the rows, and the figures are those of all rows."""

import dataclasses
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.traces import TraceOptions, inspect, read_trace
from scenarios.traces import read as row_store
from scenarios.traces.convert import convert_trace
from scenarios.traces.inspect import PERCENTS, ArrivalSums, LengthTable, inspect_trace
from tests.scenarios.traces.facts_of import arrival_facts, length_facts
from tests.scenarios.traces.test_fixtures import FIXTURE
from tests.scenarios.traces.test_read import FIXTURES, NATIVE, jsonl, mooncake, write
from tests.shared_data import shared

MIB = 1 << 20


def flat(value: Any) -> list[Any]:
    """The leaves of facts, in order."""
    if dataclasses.is_dataclass(value):
        return [leaf for field in dataclasses.fields(value) for leaf in flat(getattr(value, field.name))]
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, tuple) else [value]


def assert_streamed_as_in_memory(path: Path, options: TraceOptions | None = None) -> None:
    streamed = inspect_trace(path, options)
    whole = inspect._of_workload(path, options or TraceOptions())
    assert streamed.notes == whole.notes
    for one, other in zip(flat(streamed), flat(whole), strict=True):
        assert one == (pytest.approx(other, rel=1e-9, abs=1e-12) if isinstance(other, float) else other)


@pytest.mark.parametrize("name", FIXTURE)
def test_fixtures_are_summed_up_as_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "CHUNK_ROWS", 1)
    assert_streamed_as_in_memory(FIXTURES / name)


@pytest.mark.parametrize("name", ["mooncake_conversation_trace.jsonl.gz", "AzureLLMInferenceTrace_code.csv.gz"])
def test_real_traces_are_summed_up_as_in_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "CHUNK_ROWS", 1234)
    assert_streamed_as_in_memory(shared(f"traces/{name}"), TraceOptions(limit=5000))


def test_shuffled_ticks_are_summed_up_as_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "CHUNK_ROWS", 37)
    stamps = (np.random.default_rng(1).integers(0, 50, 1000) * 3000).tolist()
    assert_streamed_as_in_memory(write(tmp_path, mooncake(*stamps)))
    bare = jsonl(
        *({"arrival_time_s": t, "input_tokens": 1 + t % 7, "output_tokens": 9, "max_tokens": 5} for t in stamps)
    )
    assert_streamed_as_in_memory(write(tmp_path, bare))


@given(
    times=st.lists(st.floats(0, 300), min_size=1, max_size=60),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=4),
)
def test_sums_do_not_depend_on_the_parts(times: list[float], lengths: list[int], cuts: list[int]) -> None:
    arrivals, tokens = np.sort(np.array(times)), np.array(lengths)
    sums, table = ArrivalSums(), LengthTable()
    for part in np.split(arrivals, sorted(cuts)):
        if len(part):
            sums.add(part)
    for part in np.split(tokens, sorted(cuts)):
        table.add(part)
        table.table()
    for one, other in ((sums.facts(), arrival_facts(arrivals)), (table.facts(), length_facts(tokens))):
        for a, b in zip(flat(one), flat(other), strict=True):
            assert a == (pytest.approx(b, rel=1e-6, abs=1e-9) if isinstance(b, float) else b)
    assert table.facts().percentiles == pytest.approx(np.percentile(tokens, PERCENTS).tolist())


def test_too_many_different_blocks_leave_out_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "MOST_BLOCKS", 40)
    rows = ({"timestamp": t, "input_length": 10, "output_length": 2, "hash_ids": [t]} for t in range(0, 90_000, 1000))
    found = inspect_trace(write(tmp_path, jsonl(*rows)))
    assert found.prefix is None
    assert "no prefix figures: more than 40 different blocks" in found.notes


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_memory_does_not_grow_with_the_rows(order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "CHUNK_ROWS", 200)

    def peaks(rows: int) -> list[int]:
        lines = [f"{t},{5 + t % 90},{1 + t % 40},{'' if t % 3 else 'chat'}\n" for t in range(rows)]
        if order == "shuffled":
            random.Random(1).shuffle(lines)
        path = write(tmp_path, NATIVE.strip() + ",class\n" + "".join(lines), f"{rows}.csv")
        return [
            peak_bytes(lambda: inspect_trace(path)),
            peak_bytes(lambda: convert_trace(path, tmp_path / "copy.csv")),
            peak_bytes(lambda: read_trace(path, TraceOptions(start_s=rows // 2, limit=50))),
            peak_bytes(lambda: read_trace(path, TraceOptions(sample=150 / rows))),
        ]

    for small, large in zip(peaks(500), peaks(2000), strict=True):
        assert large < 1.25 * small + 100_000


COMMANDS = {
    "inspect": "inspect_trace(path)",
    "cut": "read_trace(path, TraceOptions(start_s=20_000, duration_s=30_000, sample=0.05))",
    "convert": "convert_trace(path, path.with_name('copy.csv.gz'))",
}
IN_A_PROCESS = """
import sys
from pathlib import Path
from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.convert import convert_trace
from scenarios.traces.inspect import inspect_trace
path = Path(sys.argv[1])
"""
ROWS = 5_000_000


@pytest.mark.slow
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_five_million_rows_within_500_mb(order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    resource = pytest.importorskip("resource", reason="Windows does not count a process's seconds and memory so")
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc, where Linux tells the peak of a process's memory")
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.02, ROWS)).round(6)
    if order == "shuffled":
        rng.shuffle(times)
    inputs = np.clip(rng.lognormal(6.6, 1.0, ROWS), 1, 120_000).astype(np.int64)
    outputs = np.clip(rng.lognormal(5.0, 0.9, ROWS), 1, 4000).astype(np.int64)
    with path.open("w") as file:
        file.write(NATIVE)
        for start in range(0, ROWS, 100_000):
            part = (column[start : start + 100_000].tolist() for column in (times, inputs, outputs))
            file.write("".join(f"{a},{b},{c}\n" for a, b, c in zip(*part, strict=True)))
    for name, command in COMMANDS.items():
        # ru_maxrss of children is that of the largest so far, and a child's begins at its parent's: ask it itself.
        code = f"{IN_A_PROCESS}{command}\nprint([line for line in open('/proc/self/status') if 'VmHWM' in line][0])"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak = int(done.stdout.split()[1]) / 1024
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        with capsys.disabled():
            print(f"\n{order}, {name}: {ROWS:,} rows, peak {peak:.0f} MiB, {seconds:.1f} CPU s")
        assert peak < 500e6 / MIB
