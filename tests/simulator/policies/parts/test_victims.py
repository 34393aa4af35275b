"""Who leaves when memory runs out, rule by rule."""

from dataclasses import dataclass

import pytest

from simulator.policies.parts.preemption import VICTIMS, first_to_leave
from simulator.policies.preemptive import Preemptive
from simulator.policies.vllm_v0 import VllmV0
from tests.hand import Told, serve
from tests.laws.scenarios import Memory


@dataclass(frozen=True)
class Runs:
    """What the rules look at of a request."""

    row: int
    priority: int
    num_computed_tokens: int
    num_blocks: int
    output_tokens_so_far: int
    input_tokens: int


# In order of admission.
FOUR = {
    3: Runs(3, 2, 9, 3, 5, 4),
    0: Runs(0, 1, 30, 8, 20, 10),
    1: Runs(1, 1, 40, 10, 5, 35),
    2: Runs(2, 0, 9, 3, 5, 4),
}
EXPECTED = {
    "last": [2, 1, 0, 3],
    "lowest_priority": [3, 1, 0, 2],
    "least_progress": [2, 3, 0, 1],
    "most_memory": [1, 0, 2, 3],
    "fewest_outputs": [1, 2, 3, 0],
}


@pytest.mark.parametrize("victim", EXPECTED)
def test_the_order_of_leaving(victim: str) -> None:
    found = first_to_leave(FOUR.values(), "fcfs", victim)  # type: ignore[arg-type] # looks like a batch
    assert [request.row for request in found] == EXPECTED[victim]


def test_every_rule_is_tested() -> None:
    assert set(EXPECTED) == set(VICTIMS)


@pytest.mark.parametrize(("order", "victim"), [("fcfs", "last"), ("sjf", "last"), ("priority", "lowest_priority")])
def test_the_rule_that_goes_with_an_order(order: str, victim: str) -> None:
    found = first_to_leave(FOUR.values(), order)  # type: ignore[arg-type] # looks like a batch
    assert [request.row for request in found] == EXPECTED[victim]


def short_of_a_block(policy: VllmV0 | Preemptive, priority: list[int] | None = None) -> Told:
    """8 blocks of 4, prompts of 11, 3 and 7: in the second decode step they need 3 blocks more, and 2 are left."""
    return serve(policy, [(11, 9), (3, 9), (7, 9)], [0.0, 0.0, 0.0], memory=Memory(9, 4), priority=priority)


@pytest.mark.parametrize(
    ("victim", "leaves"),
    [(None, "2"), ("last", "2"), ("lowest_priority", "0"), ("least_progress", "1"), ("most_memory", "0")],
)
def test_vllm_v0_takes_any_rule(victim: str | None, leaves: str) -> None:
    told = short_of_a_block(VllmV0(8, 64, 0.0, victim=victim), [2, 0, 1])
    assert next(filter(None, told.steps("preempted"))) == [leaves]
    assert told.column("output_tokens") == [9, 9, 9]


@pytest.mark.parametrize(
    ("victim", "leaves"),
    [(None, "2"), ("last", "2"), ("lowest_priority", "2"), ("least_progress", "1"), ("most_memory", "0")],
)
def test_preemptive_chooses_among_equals(victim: str | None, leaves: str) -> None:
    told = short_of_a_block(Preemptive(8, 64, victim=victim), [1, 1, 1])
    assert next(filter(None, told.steps("preempted"))) == [leaves]
    less = short_of_a_block(Preemptive(8, 64, victim=victim), [1, 1, 2])
    assert next(filter(None, less.steps("preempted"))) == ["2"], "the less important leaves before"


def test_fewest_outputs_and_of_equals_the_longest_prompt() -> None:
    """The third comes later and has one token less than the others; of two equals the longer prompt leaves."""
    lengths = [(4, 12), (8, 12), (1, 12)]
    told = serve(VllmV0(8, 64, 0.0, victim="fewest_outputs"), lengths, [0.0, 0.0, 1.5], memory=Memory(8, 4))
    assert next(filter(None, told.steps("preempted"))) == ["2"]
    told = serve(VllmV0(8, 64, 0.0, victim="fewest_outputs"), lengths[:2], memory=Memory(6, 4))
    assert next(filter(None, told.steps("preempted"))) == ["1"]
