"""Each file that `batchlab new` writes runs at once, by the command that it prints."""

import shlex
from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.cli.new import verbs
from scenarios.traces import TraceOptions, read_trace
from simulator.errors import InputError
from tests.command import small


def written(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Write a file of a kind, and return the command that is printed for it."""
    verbs()[kind]("mine", folder)
    command = capsys.readouterr().out.splitlines()[1]
    assert str(folder / "mine") in command
    return shlex.split(command)


def run_with(command: list[str], folder: Path) -> scenarios.Result:
    """Run a small scenario with what the command sets."""
    assert command[:3] == ["batchlab", "run", "quickstart"]
    assert set(command[3::2]) == {"--set"}
    return scenarios.run(scenarios.load(small(folder), command[4::2]))


@pytest.mark.parametrize("kind", ["policy", "router", "cost", "metric"])
def test_it_runs_at_once(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_with(written(kind, tmp_path, capsys), tmp_path)
    assert result.summary["completed"] == 60
    assert "my_" not in (tmp_path / "mine.py").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="exists already"):
        verbs()[kind]("mine", tmp_path)
    with pytest.raises(InputError, match=f"cannot name a {kind} file"):
        verbs()[kind]("not-a-name", tmp_path)


def test_a_new_trace_format_reads_the_example_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = written("trace-format", tmp_path, capsys)
    assert command[:3] == ["batchlab", "trace", "inspect"]
    workload = read_trace(Path(command[3]), TraceOptions(format=command[5]))
    assert workload.input_tokens.tolist() == [250, 90, 1200, 310]
    assert workload.arrival_s.tolist() == pytest.approx([0, 1.5, 1.9, 4])
    assert workload.class_names == ("chat", "code")
    assert any("not a line of this log (line 4)" in note for note in workload.notes)


def test_a_format_of_ones_own_stands_in_a_scenario(tmp_path: Path) -> None:
    """Relative to its file; and a missing one is said."""
    verbs()["trace-format"]("mine", tmp_path)
    path = tmp_path / "s.yaml"
    path.write_text("workload: {trace: {path: mine.log, format: ./mine.py:FORMAT}}\n", encoding="utf-8")
    assert scenarios.run(scenarios.load(path)).summary["completed"] == 4
    path.write_text("workload: {trace: {path: mine.log, format: ./mine.py:FROMAT}}\n", encoding="utf-8")
    with pytest.raises(InputError, match="no TraceFormat 'FROMAT'") as caught:
        scenarios.run(scenarios.load(path))
    assert "did you mean FORMAT?" in str(caught.value)


OWN: dict[str, Any] = {"hardware": {"num_gpu_blocks": 2000}, "workload": {"preset": "chat", "rate": 2, "requests": 5}}


def test_the_new_metric_is_in_the_summary_and_described(tmp_path: Path) -> None:
    verbs()["metric"]("mine", tmp_path)
    metrics = [f"{tmp_path}/mine.py:METRIC"]
    result = scenarios.run(scenarios.load({**OWN, "measure": {"metrics": metrics}}))
    plain = scenarios.run(scenarios.load(OWN))
    assert result.summary["ttft_tail"] == pytest.approx(plain.summary["p99_ttft_ms"] / plain.summary["p50_ttft_ms"])
    assert result.summary["own_metrics"]["ttft_tail"]["title"] == "TTFT p99 / p50"
    others = {key: value for key, value in result.summary.items() if key not in ("ttft_tail", "own_metrics")}
    assert others == plain.summary
    assert "metrics" not in plain.scenario_yaml.partition("\nmeasure:")[2], "what is not used leaves no trace"


def test_several_seeds_have_a_mean_of_the_new_metric(tmp_path: Path) -> None:
    verbs()["metric"]("mine", tmp_path)
    own = {**OWN, "measure": {"metrics": [f"{tmp_path}/mine.py:METRIC"]}}
    found = scenarios.compare(scenarios.load(own), ["chunked_prefill", "continuous"], seeds=3)
    values = [summary["ttft_tail"] for summary in found.summaries["continuous"]]
    means = found.means()["continuous"]
    assert means["ttft_tail"] == pytest.approx(sum(values) / 3)
    assert means["own_metrics"]["ttft_tail"]["title"] == "TTFT p99 / p50"
    assert "ttft_tail" in means["intervals"]
    assert "ttft_tail" in means["difference_to"]["chunked_prefill"]
