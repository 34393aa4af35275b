"""Fleets and routers of a scenario: what a group takes, what is refused and where, what a run says."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import scenarios
from scenarios.assembly.engines import groups_of, resolved_yaml
from scenarios.assembly.fleet_parts import build_router
from scenarios.check.law_trial import differences
from scenarios.runs.storage.run_folder import read_run
from scenarios.schema.loader import load, shipped
from simulator.errors import InputError
from tests.scenarios.runs.test_runner import small

OLD = {"name": "old", "replicas": 2, "hardware": {"gpu": "a100-80gb"}, "engine": {"max_num_seqs": 2}}


def fleet(*groups: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """The small scenario with these groups."""
    return {**small(), "fleet": list(groups), **changed}


def test_a_group_takes_what_it_leaves_out() -> None:
    scenario = load(fleet({"name": "new"}, OLD, hardware={"gpu": "h100", "gpu_memory_utilization": 0.8}))
    new, old = groups_of(scenario)
    assert (new.name, new.replicas, old.name, old.replicas) == ("new", 1, "old", 2)
    assert scenario.num_replicas == 3
    assert new.scenario.hardware == scenario.hardware
    assert new.scenario.engine.given() == scenario.engine.given()
    assert old.scenario.hardware.gpu == "a100-80gb"
    assert old.scenario.hardware.gpu_memory_utilization == 0.8
    assert old.scenario.engine.given() == {**scenario.engine.given(), "max_num_seqs": 2}


def test_another_policy_drops_what_it_does_not_take() -> None:
    data = fleet({"name": "a"}, {"name": "b", "engine": {"policy": "static"}})
    data["engine"] = {"policy": "chunked_prefill", "max_num_seqs": 8, "long_prefill_token_threshold": 64}
    a, b = groups_of(load(data))
    assert a.scenario.engine.given()["long_prefill_token_threshold"] == 64
    assert b.scenario.engine.given() == {"max_num_seqs": 8}
    data["fleet"][1]["engine"]["long_prefill_token_threshold"] = 64
    with pytest.raises(InputError, match=r"fleet\.1\.engine\.long_prefill_token_threshold: the policy static"):
        scenarios.run(data)


def test_a_fleet_of_one_is_no_fleet(tmp_path: Path) -> None:
    """The same bytes in every file but the scenario's own."""
    plain = scenarios.run(small(replicas=3, router="power_of_two"))
    apart = scenarios.run(fleet({"name": "default", "replicas": 3}, router="power_of_two"))
    assert differences(plain.records, apart.records) == []
    assert plain.summary == apart.summary
    names = [each.name for each in plain.save(tmp_path / "a").iterdir()]
    apart.save(tmp_path / "b")
    assert "replicas.csv.gz" in names
    for name in names:
        if name != "scenario.yaml":
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_a_run_says_what_each_replica_and_group_did(tmp_path: Path) -> None:
    result = scenarios.run(fleet({"name": "new"}, OLD, router="least_loaded"))
    groups = result.summary["groups"]
    assert list(groups) == ["new", "old"]
    assert sum(group["completed"] for group in groups.values()) == result.summary["completed"]
    assert result.replicas["group"].tolist() == ["new", "old", "old"]
    assert result.replicas["requests"].sum() == len(result.requests)
    assert result.summary["balance_cv"] > 0
    assert [each["gpu"] for each in result.summary["provenance"]["fleet"]] != []
    assert result.summary["provenance"]["replicas"] == 3
    again = scenarios.run(yaml.safe_load(result.scenario_yaml))
    assert again.summary == result.summary
    result.save(tmp_path / "run")
    assert read_run(tmp_path / "run").records.groups == result.records.groups


def test_costs_of_unlike_groups_add_up() -> None:
    from scenarios.assembly.engines import cost_per_million
    from simulator.hardware.gpus import GPUS

    per_hour = [GPUS[gpu].usd_per_hour for gpu in ("h200", "a100-80gb")]
    assert per_hour[0] is not None
    assert per_hour[1] is not None
    price = cost_per_million(load(fleet({"name": "new", "hardware": {"gpu": "h200"}}, OLD)), 1000.0)
    assert price == pytest.approx((per_hour[0] + 2 * per_hour[1]) / 3.6)


BROKEN: dict[str, tuple[str, str]] = {
    "twice": ("fleet: [{name: a}, {name: a}]", r"s\.yaml:\d+:\d+: fleet\.1\.name: a second group is called 'a'"),
    "both": ("replicas: 2\nfleet: [{name: a}]", r"replicas: contradicts fleet"),
    "none": ("fleet: []", r"fleet: must have at least 1 item, not 0"),
    "key": ("fleet: [{name: a, gpu: h200}]", r"fleet\.0\.gpu: unknown key"),
    "gpu": ("fleet: [{name: a, hardware: {gpu: h2000}}]", r"s\.yaml:\d+:\d+: fleet\.0\.hardware\.gpu: unknown gpu"),
    "engine": ("fleet: [{name: a, engine: {max_num_seq: 3}}]", r"fleet\.0\.engine\.max_num_seq: unknown key"),
    "policy": ("fleet: [{name: a, engine: {policy: chunky}}]", r"fleet\.0\.engine\.policy: unknown policy 'chunky'"),
    "cost": ("fleet: [{name: a, cost: {kind: linear}}]", r"fleet\.0\.cost\.base_s: missing"),
    "router": ("router: {kind: nearest}", r"router\.kind: unknown router 'nearest'"),
    "no kind": ("router: {choices: 2}", r"router\.kind: missing"),
    "parameter": ("router: {kind: power_of_two, choice: 2}", r"router\.choice: the router power_of_two does not use"),
    "limit": ("router: {kind: power_of_two, choices: 0}", r"router\.choices: must be a whole number of at least 1"),
    "blind": ("router: {kind: random, signal_interval_s: 1}", r"router\.signal_interval_s: the router random does not"),
    "weights": ("router: {kind: weighted, load: 0, kv: 0, prefix: 0}", r"router.*: .*all other weights are 0"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_is_said_with_its_place(case: str, tmp_path: Path) -> None:
    text, said = BROKEN[case]
    path = tmp_path / "s.yaml"
    base = {key: value for key, value in small().items() if key not in ("replicas", "router")}
    path.write_text(yaml.safe_dump(base) + text + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=said):
        scenarios.run(path)


def test_a_random_router_draws_by_the_seed_alone() -> None:
    def given_to(**changed: Any) -> list[int]:
        data = {**small(replicas=5, router="random"), **changed}
        replicas: list[int] = scenarios.run(data).records.requests.replica.tolist()
        return replicas

    first = given_to()
    assert len(set(first)) > 1
    assert given_to() == first
    assert given_to(engine={"policy": "continuous", "max_num_seqs": 2}) == first
    assert given_to(seed=1) != first


def test_draws_are_even() -> None:
    from simulator.fleet.router import Draws

    draws = Draws(np.random.Generator(np.random.PCG64(3)))
    counts = np.bincount([draws.below(7) for _ in range(70_000)], minlength=7)
    assert (abs(counts - 10_000) < 400).all()
    pairs = [tuple(draws.several(2, 3)) for _ in range(6_000)]
    assert len(set(pairs)) == 6
    assert all(a != b for a, b in pairs)
    orders = [tuple(draws.several(4, 3)) for _ in range(6_000)]
    assert len(set(orders)) == 6
    assert all(sorted(each) == [0, 1, 2] for each in orders)


def test_parameters_reach_a_users_router(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Nth:\n    def __init__(self, n: int = 0):\n        self.n = n\n"
        "    def choose(self, request, replicas):\n        return replicas[self.n]\n",
        encoding="utf-8",
    )
    router = {"kind": f"{tmp_path / 'mine.py'}:Nth", "n": 1}
    assert set(scenarios.run({**small(replicas=3), "router": router}).records.requests.replica.tolist()) == {1}
    with pytest.raises(InputError, match="does not use 'm'"):
        build_router(load({**small(replicas=3), "router": {**router, "m": 2}}))


def test_a_routers_defaults_are_written_out() -> None:
    result = scenarios.run({**small(replicas=2), "router": {"kind": "prefix_affinity", "block_size": 4}})
    written = yaml.safe_load(result.scenario_yaml)["router"]
    assert written["block_size"] == 4
    assert written["cache_threshold"] == 0.3
    assert written["signal_interval_s"] == 0


def test_resolving_twice_is_the_identity() -> None:
    """Of every shipped scenario, and of a fleet whose groups differ in policy, hardware, role and number."""
    old = {**OLD, "engine": {"policy": "static", "max_num_seqs": 2}}
    unlike = fleet({"name": "new"}, old, router={"kind": "least_kv"})
    for scenario in [*map(partial(load, check_files=False), shipped()), load(unlike)]:
        once = resolved_yaml(scenario)
        assert resolved_yaml(load(yaml.safe_load(once), check_files=False)) == once, scenario.name


def test_a_table_has_a_line_a_replica_or_a_group_where_they_are_many() -> None:
    from reports.tables.details import replica_table

    few = scenarios.run(fleet({"name": "new"}, OLD)).records
    many = scenarios.run(fleet({"name": "new", "replicas": 15}, OLD)).records
    table = replica_table([("few", few)])
    assert table is not None
    assert [line[:2] for line in table.body] == [("new", "0"), ("old", "1"), ("old", "2")]
    table = replica_table([("many", many)])
    assert table is not None
    assert [line[:2] for line in table.body] == [("new", "15 replicas"), ("old", "2 replicas")]
    assert replica_table([("one", scenarios.run(small()).records)]) is None
