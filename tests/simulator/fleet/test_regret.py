"""What a router's choices cost against the best replica for each request."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import scenarios
from scenarios.runs.storage.run_folder import read_run, write_run
from simulator.errors import InputError
from tests.scenarios.runs.test_runner import small


def trace(folder: Path) -> dict[str, object]:
    """Three requests with one beginning: two replicas, in turn."""
    path = folder / "trace.csv"
    rows = ["0,100,4,text,64", "1,100,4,text,64", "2,100,4,text,64"]
    path.write_text("\n".join(["arrival_time_s,input_tokens,output_tokens,prefix_group,prefix_tokens", *rows, ""]))
    return {"trace": {"path": str(path)}}


def test_by_hand(tmp_path: Path) -> None:
    """The second request goes where nothing is cached, though the first replica has its 64 tokens; queues are empty."""
    scenario = small(
        replicas=2, router={"kind": "round_robin", "regret": True}, workload=trace(tmp_path),
        engine__enable_prefix_caching=True,
    )  # fmt: skip
    result = scenarios.run(scenario)
    regrets = result.records.regrets
    assert regrets is not None
    assert regrets.row.tolist() == [0, 1, 2]
    assert regrets.cached_tokens.tolist() == [0, 0, 64]
    assert regrets.most_cached_tokens.tolist() == [0, 64, 64]
    assert regrets.unfinished.tolist() == regrets.fewest_unfinished.tolist() == [0, 0, 0]
    assert result.summary["overlap_lost_rate"] == pytest.approx(64 / 300)
    assert result.summary["overlap_missed"] == pytest.approx(1 / 3)
    assert result.summary["mean_queue_excess"] == result.summary["p99_queue_excess"] == 0


def test_who_is_asked_decides_as_before() -> None:
    told = scenarios.run(small(replicas=3, router={"kind": "random", "regret": True}))
    alone = scenarios.run(small(replicas=3, router="random"))
    assert told.records.requests.replica.tolist() == alone.records.requests.replica.tolist()
    assert told.records.requests.last_token_s.tolist() == alone.records.requests.last_token_s.tolist()
    assert alone.records.regrets is None
    assert alone.summary.get("overlap_missed") is None
    least = scenarios.run(small(replicas=3, router={"kind": "least_loaded", "regret": True}))
    assert least.summary["mean_queue_excess"] == 0 < told.summary["mean_queue_excess"]


def test_halves_of_requests_have_none() -> None:
    halves = [{"name": "p", "replicas": 2, "role": "prefill"}, {"name": "d", "replicas": 2, "role": "decode"}]
    with pytest.raises(
        InputError,
        match="router: a router that follows whole requests cannot be combined with prefill and decode apart",
    ):
        scenarios.run(small(fleet=halves, router={"kind": "least_loaded", "regret": True}))


def test_it_is_saved(tmp_path: Path) -> None:
    result = scenarios.run(small(replicas=2, router={"kind": "round_robin", "regret": True}))
    assert yaml.safe_load(result.scenario_yaml)["router"]["regret"] is True
    write_run(tmp_path, scenario_yaml=result.scenario_yaml, summary=result.summary, records=result.records)
    saved, told = read_run(tmp_path).records.regrets, result.records.regrets
    assert saved is not None
    assert told is not None
    assert [getattr(saved, field.name).tolist() for field in fields(saved)] == [
        getattr(told, field.name).tolist() for field in fields(told)
    ]
