"""Autoscaling in scenarios: what a run says of it, its files, what it costs, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from scenarios.check.law_trial import differences
from scenarios.runs.runner import run
from scenarios.runs.storage.run_folder import read_run
from scenarios.schema.loader import load
from simulator.errors import InputError

RULE = {
    "max_replicas": 4,
    "targets": {"num_requests_waiting": 2},
    "interval_s": 2,
    "startup_s": 3,
    "scale_down_stabilization_s": 5,
}


def scenario(group: dict[str, Any]) -> dict[str, Any]:
    arrival = {"process": "poisson", "rate": 5, "profile": [[0, 1], [10, 6], [20, 0.3]]}
    lengths = {"input": {"dist": "fixed", "value": 500}, "output": {"dist": "uniform", "min": 50, "max": 300}}
    return {
        "name": "spike",
        "workload": {"requests": 400, "classes": [{"name": "c", "arrival": arrival, **lengths}]},
        "engine": {"policy": "continuous", "max_num_seqs": 4},
        "fleet": [{"name": "a", "hardware": {"tensor_parallel": 2}, **group}],
        "router": "least_loaded",
    }


def test_a_spike_is_scaled_for_and_paid_for() -> None:
    result = run(scenario({"autoscaling": RULE}))
    summary = result.summary
    assert summary["peak_replicas"] == 4
    assert summary["scale_outs"] == 3
    assert summary["scale_ins"] >= 1
    assert summary["mean_time_to_scale_s"] == 3.0
    seconds = summary["replica_seconds"]
    assert summary["duration"] < seconds < 4 * summary["duration"]
    assert summary["gpu_hours"] == pytest.approx(2 * seconds / 3600)
    price = result.scenario.resolve_gpu().usd_per_hour
    assert price is not None
    expected = summary["gpu_hours"] * price / summary["total_output_tokens"] * 1e6
    assert summary["usd_per_million_output_tokens"] == pytest.approx(expected)


def test_without_a_choice_it_is_a_fixed_fleet() -> None:
    one = run(scenario({"autoscaling": {**RULE, "min_replicas": 3, "max_replicas": 3}}))
    two = run(scenario({"replicas": 3}))
    assert differences(one.records, two.records) == []
    assert one.summary == two.summary
    assert one.scenario_yaml.splitlines()[1:] == two.scenario_yaml.splitlines()[1:]


def test_the_run_folder_keeps_the_lives(tmp_path: Path) -> None:
    result = run(scenario({"autoscaling": RULE}))
    saved = read_run(result.save(tmp_path / "run"))
    assert saved.records.lives is not None
    assert differences(saved.records, result.records) == []
    again = run(load(tmp_path / "run" / "scenario.yaml"))
    assert differences(again.records, result.records) == []


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ({"autoscaling": {**RULE, "min_replicas": 5}}, "fleet.0.autoscaling.min_replicas: 5 is above max_replicas 4"),
        ({"replicas": 9, "autoscaling": RULE}, "fleet.0.replicas: 9 is outside autoscaling's 1 to 4"),
        ({"autoscaling": {**RULE, "targets": {}}}, "fleet.0.autoscaling.targets: no metric has a target"),
        (
            {"autoscaling": {**RULE, "targets": {"slo_attainment": 0.9}}},
            "fleet.0.autoscaling.targets.slo_attainment: there is no limit that a request could meet",
        ),
        ({"autoscaling": {**RULE, "target": {}}}, "fleet.0.autoscaling.target: unknown key"),
    ],
)
def test_what_cannot_be_is_refused(group: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        load(scenario(group))
    assert words in str(caught.value)
