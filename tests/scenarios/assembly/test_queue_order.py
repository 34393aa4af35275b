"""Queue orders in a scenario: which keys belong to which, and what a policy is given."""

from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.assembly.engines import build_policy, resolved_yaml, with_policy
from scenarios.assembly.workloads import build_workload, is_random, same_requests
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.queues import QUEUES, order_parameters


def chat(name: str, **keys: Any) -> dict[str, Any]:
    return {
        "name": name,
        "arrival": {"process": "poisson", "rate": 20},
        "input": {"dist": "uniform", "min": 10, "max": 400},
        "output": {"dist": "uniform", "min": 2, "max": 200},
        **keys,
    }


def scenario(*, predictor: dict[str, Any] | None = None, slo: dict[str, Any] | None = None, **engine: Any) -> Scenario:
    workload = {"requests": 60, "classes": [chat("a"), chat("b")], "predictor": predictor}
    return load({"workload": workload, "engine": engine, "slo": slo})


def order_of(**keys: Any) -> Any:
    policy: Any = build_policy(scenario(**keys))
    return policy.order


def test_a_policy_gets_its_order_with_what_was_given() -> None:
    assert repr(order_of(order="sjf")) == "'sjf'"
    assert repr(order_of(order="sjf", aging_s=3)) == "Order('sjf', aging_s=3.0)"
    weights = {"a": 2.0}
    assert order_of(order="vtc", class_weights=weights, w_q=4).parameters == {"class_weights": weights, "w_q": 4.0}
    assert order_of(policy="continuous", order="fair", max_wait_s=None).parameters == {"max_wait_s": None}


@pytest.mark.parametrize("order", [order for order, kind in QUEUES.items() if not kind.is_internal])
def test_defaults_are_the_orders_own(order: str) -> None:
    resolved = scenario(order=order).engine.resolved()
    for key, parameter in order_parameters(order).items():
        assert resolved[key] == parameter.default
    others = {key for kind in QUEUES.values() for key in kind.parameters} - set(order_parameters(order))
    assert not others & set(resolved)


def test_a_deadline_that_is_given_counts_before_the_slo() -> None:
    order = order_of(order="edf", deadline_s=7, slo={"ttft_ms": 500})
    assert order.parameters == {"deadline_s": 7.0}


@pytest.mark.parametrize(
    ("slo", "deadline_s"),
    [
        (None, None),
        ({"tpot_ms": 50}, None),
        ({"ttft_ms": 500}, 0.5),
        ({"ttft_ms": 500, "e2el_ms": 4000}, 4.0),
    ],
)
def test_deadlines_come_from_the_slo(slo: dict[str, float] | None, deadline_s: float | None) -> None:
    order = order_of(order="edf", slo=slo)
    assert order == "edf"
    assert getattr(order, "parameters", {}).get("deadline_s") == deadline_s


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"aging_s": 1}, "engine.aging_s: the order fcfs does not use this key\n.*orders that take it: sjf"),
        ({"order": "sjf", "w_p": 3}, "engine.w_p: the order sjf does not use this key\n.*fair, vtc"),
        ({"order": "vtc", "max_wait_s": 3}, "engine.max_wait_s: the order vtc does not use this key"),
        ({"policy": "preemptive", "aging_s": 1}, "engine.aging_s: the policy preemptive does not use this key"),
        ({"policy": "static", "order": "sjf"}, "engine.order: the policy static does not use this key"),
        ({"order": "vtc", "w_p": 0, "w_q": 0}, "engine.order: the order vtc refuses its parameters"),
        ({"order": "fair", "class_weights": {"c": 2}}, r"engine.class_weights.*no class is called 'c'"),
        ({"order": "weighted", "class_s": {"c": 2}}, r"engine.class_s.*no class is called 'c'"),
        ({"order": "weighted", "cached_token_s": 1}, "engine.cached_token_s: it counts what a prefix cache holds"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        scenarios.run(scenario(**engine))


def test_a_key_at_its_default_asks_for_nothing() -> None:
    assert order_of(aging_s=None, max_wait_s=60.0, class_weights=None, w_p=1.0) == "fcfs"


def test_a_resolved_scenario_says_it_all_and_runs_again() -> None:
    for keys in ({"order": "sjf", "aging_s": 3.0}, {"order": "fair", "class_weights": {"b": 4.0}, "max_wait_s": None}):
        found = scenario(**keys, slo={"ttft_ms": 100}, predictor={"kind": "noisy", "cv": 0.5}, max_num_seqs=4)
        once = scenarios.run(found)
        again = scenarios.run(load_text(once.scenario_yaml))
        assert again.summary == once.summary
        assert again.scenario_yaml == once.scenario_yaml
        resolved = load_text(resolved_yaml(found)).engine.resolved()
        assert {key: resolved[key] for key in keys} == keys


def load_text(text: str) -> Scenario:
    import yaml

    return load(yaml.safe_load(text))


def test_comparing_keeps_an_orders_keys_where_the_order_goes() -> None:
    given = scenario(order="sjf", aging_s=3.0)
    kept, dropped = with_policy(given, "continuous")
    assert (kept.engine.parameter("order"), kept.engine.parameter("aging_s"), dropped) == ("sjf", 3.0, ())
    kept, dropped = with_policy(given, "static")
    assert (kept.engine.given(), dropped) == ({}, ("order", "aging_s"))


def test_a_users_policy_may_take_an_order_too(tmp_path: Path) -> None:
    """Its own default counts as the order that is given; orders that are not ours stay words."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from simulator.plan import StepPlan, Traits\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    max_num_seqs: int = 4\n"
        "    order: str = 'sjf'\n"
        "    @property\n"
        "    def traits(self): return Traits(order=self.order)\n"
        "    def plan(self, view): return StepPlan()\n"
    )
    policy = f"{file}:Mine"
    assert order_of(policy=policy, aging_s=2.0).parameters == {"aging_s": 2.0}
    assert order_of(policy=policy, order="shortest") == "shortest"
    with pytest.raises(InputError, match=r"engine\.w_p: the order sjf does not use this key"):
        order_of(policy=policy, w_p=2.0)


def test_predictions_are_part_of_what_a_seed_makes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time_s,input_tokens,output_tokens\n0,5,50\n1,5,70\n2,5,90\n")
    for kind, random in (("noisy", True), ("oracle", False)):
        predictor = {"kind": kind, **({"cv": 0.5} if random else {})}
        data = {"workload": {"trace": {"path": str(trace)}, "predictor": predictor}}
        one, other = (build_workload(load({**data, "seed": seed})) for seed in (0, 1))
        assert is_random(load(data)) is random
        assert same_requests(one, other) is not random


def test_shorter_first_helps_most_and_hurts_the_long() -> None:
    """A busy server: with an oracle the mean time to the first token falls, and the worst grows."""

    def ttft(**keys: Any) -> tuple[float, float]:
        summary = scenarios.run(scenario(max_num_seqs=2, **keys)).summary
        return float(summary["mean_ttft_ms"]), float(summary["p99_ttft_ms"])

    oracle = {"kind": "oracle"}
    first, shortest = ttft(), ttft(order="sjf", predictor=oracle)
    blind = ttft(order="sjf", predictor={"kind": "none"})
    assert shortest[0] < 0.8 * first[0]
    assert shortest[1] > first[1]
    assert blind == first, "all have the same cap"
