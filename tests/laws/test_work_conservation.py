"""Law 8: while the engine rests nobody waits who could run; static batching's timeout apart."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.laws import rests
from simulator.plan import Traits
from simulator.policies.static import Static
from tests.examples import examples
from tests.laws.scenarios import LEAVING_SLOTS, POLICIES, RESTING, Scenario, scenarios


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in RESTING])
@given(data=st.data())
@examples(80)
def test_a_rest_ends_with_an_arrival(name: str, data: st.DataObject) -> None:
    """It begins when everybody has been served, and ends the very moment that somebody comes."""
    records = data.draw(scenarios(name)).run().records
    for rest in rests(records):
        arrivals = records.requests.arrival_s[rest.waiting]
        if rest.to_s == np.inf:
            assert rest.waiting == []
        else:
            assert len(arrivals)
            assert (arrivals == rest.to_s).all(), "somebody waited while the engine rested"


@given(data=st.data())
@examples(150)
def test_static_rests_until_a_batch_is_full_or_late(data: st.DataObject) -> None:
    """At the first moment at which the oldest has waited its timeout, or the others fill the batch, and not later."""
    scenario = data.draw(scenarios("static"))
    policy = scenario.policy
    assert isinstance(policy, Static)
    records = scenario.run().records
    arrival_s = records.requests.arrival_s
    for rest in rests(records):
        if rest.to_s == np.inf:
            assert rest.waiting == []
            continue
        late_s = arrival_s[rest.waiting[0]] + policy.batch_timeout_s
        fillers = (row for i, row in enumerate(rest.waiting) if fills(scenario, rest.waiting[: i + 1]))
        full_s = next((arrival_s[row] for row in fillers), np.inf)
        assert rest.to_s == max(rest.from_s, min(late_s, full_s))


def fills(scenario: Scenario, rows: list[int]) -> bool:
    """Whether a batch can take no more than these, or not even all of these."""
    policy, workload = scenario.policy, scenario.workload
    assert isinstance(policy, Static)
    longest = int(workload.input_tokens[rows].max()) + int(workload.max_tokens[rows].max())
    blocks = -(-longest // scenario.memory.block_size) * len(rows)
    slots = min(policy.max_num_seqs, policy.max_num_batched_tokens)
    return len(rows) >= slots or blocks > scenario.memory.num_gpu_blocks - 1


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in LEAVING_SLOTS])
@given(data=st.data())
@examples(60)
def test_a_slot_is_not_left_empty(name: str, data: st.DataObject) -> None:
    """With memory and budget for everybody, who waits finds every slot taken."""
    scenario = data.draw(scenarios(name))
    if getattr(scenario.policy, "traits", Traits()).order == "in-turn":
        return  # the next head of the queue enters a step later
    records = ample(scenario).run(log_decisions=True)
    assert records.decisions is not None
    slots = scenario.policy.max_num_seqs
    for step in records.decisions:
        assert not step["waiting"] or len(step["running"]) >= slots  # more, where some are paused


def ample(scenario: Scenario) -> Scenario:
    """The same with memory and token budget for all at once."""
    policy: Any = scenario.policy
    unbounded = {key: None for key in ("chunked_prefill_size", "max_prefill_tokens") if hasattr(policy, key)}
    return replace(
        scenario,
        policy=replace(policy, max_num_batched_tokens=10_000, **unbounded),
        memory=replace(scenario.memory, num_gpu_blocks=10_000),
    )
