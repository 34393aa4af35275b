"""Energy of a run by hand, and where it is told."""

import json
from pathlib import Path

import pytest

import scenarios
from simulator.errors import InputError
from simulator.metrics.part_metrics import joules
from simulator.metrics.window import measured_window
from tests.command import batchlab
from tests.simulator.traffic.test_clients import run, workload

SCENARIO = {
    "workload": {"preset": "chat", "rate": 20, "requests": 200}, "hardware": {"gpu": "h100"}, "energy": {},
    "engine": {"policy": "chunked_prefill"},
}  # fmt: skip


def test_busy_and_idle_moments() -> None:
    """Two requests alone, a token a step: 1 s busy at a batch of one, 1 s idle, 1 s busy; a second GPU idles."""
    records = run(workload([0.0, 2.0], [4, 4]), replicas=2, router="least_loaded")
    found = joules(records, measured_window(records), [700.0, 700.0])
    assert found.taken == pytest.approx(2 * 300 + 4 * 0.16 * 700)
    assert found.low == pytest.approx(2 * 300 + 4 * 0.14 * 700)
    assert found.high == pytest.approx(2 * 700 + 4 * 0.18 * 700)


def test_the_summary_tells_it_where_asked() -> None:
    summary = scenarios.run(SCENARIO | {"energy": {"grams_co2_per_kwh": 400}}).summary
    taken, low, high = (summary[f"joules_per_output_token{end}"] for end in ("", "_low", "_high"))
    assert low < taken < high
    assert summary["grams_co2_per_million_output_tokens"] == pytest.approx(taken * 1e6 / 3.6e6 * 400)
    double = scenarios.run(SCENARIO | {"energy": {"tdp_w": 1400}}).summary
    assert double["joules_per_output_token"] == pytest.approx(2 * taken)
    assert "grams_co2_per_million_output_tokens" not in double
    without = scenarios.run({key: value for key, value in SCENARIO.items() if key != "energy"})
    assert not [name for name in without.summary if "joules" in name]
    assert "energy" not in without.scenario_yaml


def test_a_gpu_without_a_known_limit_is_an_error() -> None:
    gpu = {"name": "mine", "memory_gib": 80, "bandwidth_gb_s": 3000, "bf16_tflops": 900}
    with pytest.raises(InputError, match=r"the power limit of mine is not known\n *give energy.tdp_w"):
        scenarios.run(SCENARIO | {"hardware": {"gpu": gpu}})


def test_a_plan_tells_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    done = batchlab("plan", "s.yaml", "--slo", "p99_ttft_ms<=2000", "--json", "--quiet", cwd=tmp_path)
    candidate = json.loads(done.out)["candidates"][0]
    assert candidate["joules_per_output_token_low"] < candidate["joules_per_output_token"]
