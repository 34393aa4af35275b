"""Orders that change with time and service, in whole runs: vtc's gap, and looking again in every step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.queues import Order
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.examples import examples
from tests.laws.orders import CLASSES, ORDERED
from tests.laws.scenarios import Memory, Scenario, make_policy, make_workload
from tests.laws.test_fast_forward import same_with_and_without


def gaps(scenario: Scenario, w_p: float, w_q: float) -> float:
    """The widest difference in service between two classes over any time in which both wait, from the decisions."""
    names = scenario.workload.class_names
    classes = {str(row): names[index] for row, index in enumerate(scenario.workload.class_index.tolist())}
    inputs = {str(row): count for row, count in enumerate(scenario.workload.input_tokens.tolist())}
    run = scenario.run(log_decisions=True)
    assert run.decisions is not None
    served = dict.fromkeys(names, 0.0)
    computed = dict.fromkeys(classes, 0)
    ahead: dict[tuple[str, str], list[float]] = {}
    widest = 0.0
    for step in run.decisions:
        assert not step["preempted"]
        for row in step["admitted"]:
            served[classes[row]] += w_p * inputs[row]
        for row, tokens in step["scheduled"].items():
            computed[row] += tokens
            if computed[row] >= inputs[row]:
                served[classes[row]] += w_q
        waits = {classes[row] for row in step["waiting"]}
        for pair in ((one, other) for one in names for other in names):
            seen = ahead.setdefault(pair, [])
            if not waits >= set(pair):
                seen.clear()
                continue
            seen.append(served[pair[0]] - served[pair[1]])
            widest = max(widest, max(seen) - min(seen))
    return widest


def crowd(seed: int, count: int) -> Workload:
    """Floods and trickles of three classes, whose prompts and answers differ: always more than can be served."""
    rng = np.random.default_rng(seed)
    classes = np.sort(rng.integers(0, 3, count)) if seed % 2 else rng.integers(0, 3, count)
    longest = np.array([(30, 4), (4, 30), (15, 15)])[classes]
    lengths = [(int(rng.integers(1, i + 1)), int(rng.integers(1, o + 1))) for i, o in longest.tolist()]
    workload = make_workload(np.cumsum(rng.choice([0.0, 0.0, 0.01], count)).tolist(), lengths)
    return replace(workload, class_index=classes, class_names=CLASSES)


@pytest.mark.parametrize("policy", ORDERED)
@given(seed=st.integers(0, 2**20))
@examples(25)
def test_the_gap_in_whole_runs(policy: str, seed: int) -> None:
    """At most 2 max(w_p L_input, w_q M): with memory for all, M is what the slots can hold at the most."""
    slots, w_p, w_q = 3, 1.0, 2.0
    order = Order("vtc", w_p=w_p, w_q=w_q)
    chosen = make_policy(policy, slots, 64, order=order)
    scenario = Scenario(crowd(seed, 120), chosen, Memory(10_000, 4), Linear(0.01, 1e-4))
    bound = 2 * max(w_p * 30, w_q * slots * 34)
    assert gaps(scenario, w_p, w_q) <= bound


@pytest.mark.parametrize("policy", ORDERED)
def test_first_come_first_served_does_not_keep_to_it(policy: str) -> None:
    """A flood of one class before another, and the bound is broken: it is the order that keeps it."""
    chosen: Any = make_policy(policy, 3, 64)
    scenario = Scenario(crowd(1, 200), chosen, Memory(10_000, 4), Linear(0.01, 1e-4))
    flood = replace(scenario, workload=replace(scenario.workload, arrival_s=np.zeros(200)))
    fair = replace(flood, policy=replace(chosen, order="vtc"))
    assert gaps(fair, 1.0, 2.0) <= 2 * 2.0 * 3 * 34 < gaps(flood, 1.0, 2.0)


@pytest.mark.parametrize("policy", ORDERED)
@pytest.mark.parametrize("order", [Order("sjf", aging_s=0.011), Order("fair", max_wait_s=0.05), Order("vtc")], ids=repr)
def test_who_waits_for_the_only_slot_changes_places(policy: str, order: str) -> None:
    """Arrivals of several classes while one request decodes: the order is another one from step to step."""
    workload = make_workload([0.0, 0.0025, 0.0065, 0.0105, 0.0145], [(4, 12), (9, 3), (2, 6), (5, 1), (1, 2)])
    workload = replace(workload, class_index=np.array([0, 1, 0, 2, 1]), class_names=CLASSES)
    predicted = np.array([12, 9, 6, 1, 2])
    workload = replace(workload, predicted_output_tokens=predicted)
    for slots in (1, 2):
        chosen = make_policy(policy, slots, 16, order=order)
        same_with_and_without(Scenario(workload, chosen, Memory(100, 4), Linear(0.002)))
