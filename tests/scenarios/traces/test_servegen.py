"""ServeGen's tables of clients: the requests drawn from them have the rates, the variation and the lengths given."""

import json
from pathlib import Path

import numpy as np
import pytest

import scenarios
from scenarios.assembly.workloads import build_workload, is_random
from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.inspect import inspect_trace
from simulator.errors import InputError
from tests.scenarios.traces.test_convert import there_and_back
from tests.scenarios.traces.test_read import FIXTURES, notes, write


def pool(folder: Path, tables: dict[int, tuple[str, dict[str, dict[str, str]]]]) -> Path:
    for number, (table, dataset) in tables.items():
        write(folder, table, f"chunk-{number}-trace.csv")
        write(folder, json.dumps(dataset), f"chunk-{number}-dataset.json")
    return folder


LENGTHS = {"0": {"input_tokens": "{10: 0.25, 200: 0.75}", "output_tokens": "{5: 1.0}"}}
OTHERS = {
    "0": {"input_tokens": "{30: 1.0}", "output_tokens": "{6: 1.0}"},
    "600": {"input_tokens": "{}", "output_tokens": "{}"},  # a window of which nothing is known: the one before counts
    "1200": {"input_tokens": "{31: 1}", "output_tokens": "{7: 0.5, 0: 0.5}"},
}
STEADY = "0,4.0,1.5,Gamma,0.444,0.5\n600,8.0,1.5,Gamma,0.444,0.3\n1200,0,0,,0,0\n1800,4.0,0.5,Weibull,2.1,0.3\n"


def test_rates_variation_and_lengths(tmp_path: Path) -> None:
    path = pool(tmp_path, {7: (STEADY, LENGTHS)})
    counts, cvs, inputs = [], [], []
    for seed in range(20):
        workload = read_trace(path, TraceOptions(seed=seed))
        counts.append(np.histogram(workload.arrival_s, [0, 600, 1200, 1800, 2400])[0])
        gaps = np.diff(workload.arrival_s[workload.arrival_s < 600])
        cvs.append(gaps.std() / gaps.mean())
        inputs.append(np.mean(workload.input_tokens == 200))
        assert set(workload.input_tokens.tolist()) == {10, 200}
        assert set(workload.output_tokens.tolist()) == {5}
    mean = np.mean(counts, axis=0)
    # Variance of a renewal count: CV^2 x mean. Four standard errors over 20 seeds.
    for found, expected, cv in zip(mean, (2400, 4800, 0, 2400), (1.5, 1.5, 1.0, 0.5), strict=True):
        assert abs(found - expected) <= 4 * cv * np.sqrt(expected / 20)
    assert np.mean(cvs) == pytest.approx(1.5, rel=0.05)
    assert np.mean(inputs) == pytest.approx(0.75, abs=0.01)


def test_a_gap_goes_on_beyond_its_window(tmp_path: Path) -> None:
    """In windows that hold one arrival each, gaps that began anew would make too many arrivals."""
    table = "".join(f"{5 * window},0.2,1.5,Gamma,0.444,5\n" for window in range(4000))
    counts = [len(read_trace(pool(tmp_path, {7: (table, LENGTHS)}), TraceOptions(seed=seed))) for seed in range(5)]
    assert abs(np.mean(counts) - 4000) < 4 * 1.5 * np.sqrt(4000 / 5)


def test_clients_are_classes_with_streams_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    one = pool(tmp_path / "one", {7: (STEADY, LENGTHS)})
    (tmp_path / "both").mkdir()
    both = pool(tmp_path / "both", {7: (STEADY, LENGTHS), 12: ("0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n", OTHERS)})
    alone, together = read_trace(one), read_trace(both)
    assert sorted(together.class_names) == ["client-12", "client-7"]
    mine = together.class_index == together.class_names.index("client-7")
    assert together.arrival_s[mine].tolist() == alone.arrival_s.tolist()
    assert together.input_tokens[mine].tolist() == alone.input_tokens.tolist()
    assert set(together.input_tokens[~mine].tolist()) == {30}
    assert "drawn from the tables of 2 clients (seed 0)" in notes(together)
    assert inspect_trace(both, TraceOptions(duration_s=100)).format == "servegen-tables"


def test_one_table_can_be_read_and_converted_alone(tmp_path: Path) -> None:
    table = (FIXTURES / "servegen_chunk-1-trace.csv").read_text()
    (tmp_path / "pool").mkdir()
    path = pool(tmp_path / "pool", {1: (table, OTHERS)}) / "chunk-1-trace.csv"
    (tmp_path / "copy").mkdir()
    workload = there_and_back(path, tmp_path / "copy" / "copy.csv", TraceOptions(seed=3))
    assert workload.arrival_s[0] >= 600
    assert workload.arrival_s[-1] < 1800
    late = workload.arrival_s >= 1200
    assert set(workload.input_tokens[late].tolist()) == {31}
    assert set(workload.output_tokens[late].tolist()) == {7}
    assert "a length drawn from the table is 0" in notes(workload)


def test_another_seed_of_the_scenario_draws_other_requests(tmp_path: Path) -> None:
    trace = {"path": str(pool(tmp_path, {7: (STEADY, LENGTHS)})), "duration_s": 50}
    scenario = scenarios.load({"workload": {"trace": trace}, "seed": 1})
    other = scenarios.load({"workload": {"trace": trace}, "seed": 2})
    assert is_random(scenario)
    assert not np.array_equal(build_workload(scenario).arrival_s[:9], build_workload(other).arrival_s[:9])


@pytest.mark.parametrize(
    ("table", "dataset", "said"),
    [
        ("0,1,1,Normal,1,1\n", LENGTHS, "chunk-1-trace.csv:1: not a window of Gamma or Weibull arrivals"),
        ("0,1e300,1,Gamma,1,1\n", LENGTHS, "not a window of Gamma or Weibull"),
        ("0,1,1,Gamma,x,1\n", LENGTHS, "chunk-1-trace.csv:1: shape is not a number: 'x'"),
        ("0,1,1,Gamma,1\n", LENGTHS, "not 6 fields"),
        ("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", LENGTHS, "chunk-1-trace.csv:2: the windows do not ascend"),
        (STEADY, {"0": {"input_tokens": "{5: 1}"}}, "chunk-1-dataset.json: not the distributions of a ServeGen client"),
        (STEADY, {"0": {"input_tokens": "__import__('os')", "output_tokens": "{}"}}, "not the distributions"),
        (STEADY, {"0": {"input_tokens": "{5: ", "output_tokens": "{}"}}, "a distribution is not a Python dict"),
        (STEADY, {"x": {"input_tokens": "{5: 1}", "output_tokens": "{5: 1}"}}, "not the distributions"),
        ("0,0,0,,0,0\n", LENGTHS, "no usable request"),
    ],
)
def test_bad_tables(table: str, dataset: dict[str, dict[str, str]], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(pool(tmp_path, {1: (table, dataset)}))
    assert said in str(caught.value)
