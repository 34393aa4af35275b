"""A run says where its TTFT is sensitive to step times, and by how much."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.assembly.workloads import build_workload
from scenarios.runs import runner as sensitivity
from scenarios.runs.result import Result
from scenarios.runs.runner import is_cheap, may_hang, run_on, sensitivity_words, step_times
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear
from simulator.timing.pipeline_cost import Scaled
from tests.command import batchlab
from tests.traffic import one_class


def server(utilisation: float, requests: int = 1500, **workload: Any) -> Result:
    """One slot, 0.1 s a request: an M/D/1 queue."""
    data = {
        "name": "server",
        "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 0, "per_context_token_s": 0},
        "workload": one_class(requests, 10 * utilisation, 10, 10, **workload),
        "engine": {"policy": "vllm", "max_num_seqs": 1},
    }
    return scenarios.run(data)


def test_a_busy_server_magnifies_the_step_times_as_queueing_theory_says() -> None:
    """M/D/1 waits u s / (2 (1 - u)): at u = 0.93 steps 5 % longer make 2.6 times the wait."""
    result = server(0.93)
    assert may_hang(result)
    assert is_cheap(result)
    found = step_times(result)
    assert found is not None
    assert found.is_magnified
    assert found.shorter[0] < 0.85 * found.plain[0]
    assert found.longer[0] > 1.3 * found.plain[0]
    words = sensitivity_words(result)
    assert words is not None
    assert words.startswith("warning: TTFT is sensitive to step times: with steps 5 % shorter, mean TTFT ")
    assert f"{found.longer[0]:,.0f} ms (+{100 * (found.longer[0] / found.plain[0] - 1):.0f} %)" in words


def test_an_idle_server_says_nothing_unless_asked() -> None:
    result = server(0.3)
    assert not may_hang(result)
    assert sensitivity_words(result) is None
    asked = sensitivity_words(result, asked=True)
    assert asked is not None
    assert asked.startswith("TTFT follows the step times: ")


def test_a_large_run_is_not_run_again_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "CHEAP_REQUESTS", 100)
    result = server(0.93)
    words = sensitivity_words(result)
    assert words is not None
    assert "--sensitivity tries steps 5 % shorter" in words
    assert "busy 9" in words
    assert "mean TTFT " in str(sensitivity_words(result, asked=True))
    assert sensitivity_words(result, asked=False) is None


def test_the_users_of_a_closed_loop_wait_for_each_other() -> None:
    loop = {"name": "a", "arrival": {"process": "closed_loop", "concurrency": 30, "think_time_s": 0.0}}
    lengths = {"input": {"dist": "fixed", "value": 10}, "output": {"dist": "fixed", "value": 10}}
    result = server(0.9, requests=100, classes=[{**loop, **lengths}])
    assert result.summary["busy_fraction"] > 0.9
    assert not may_hang(result)


def test_every_step_takes_as_much_longer() -> None:
    shape = StepShape(4, 400)
    cost = Scaled(Linear(0.01, 1e-5, 1e-7), 1.05)
    assert cost.step_s(shape) == 1.05 * Linear(0.01, 1e-5, 1e-7).step_s(shape)
    assert cost.decode_run_s(shape, 3) == [cost.step_s(shape.later(i)) for i in range(3)]
    result = server(0.5)
    slower = run_on(result.scenario, build_workload(result.scenario), step_time=1.5)
    served_s = [each.records.requests.last_token_s - each.records.requests.scheduled_s for each in (result, slower)]
    assert np.allclose(served_s[1], 1.5 * served_s[0])


def test_the_command_line_says_it_beside_the_other_notes(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(scenarios.dump(server(0.93).scenario))
    done = batchlab("run", "s.yaml", "--out", "o", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "TTFT is sensitive to step times" in done.err
    again = batchlab("run", "s.yaml", "--out", "p", "--no-sensitivity", cwd=tmp_path)
    assert "TTFT is sensitive" not in again.err
    assert replace(server(0.93), notes=()).summary == server(0.93).summary
