"""Asynchronous scheduling by hand. vLLM's own is followed step by step in tests/parity."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.errors import PolicyError
from simulator.plan import Preemption, StepPlan, Traits, View
from simulator.policies.chunked_prefill import ChunkedPrefill
from tests.hand import Told, serve
from tests.laws.scenarios import Memory

ASYNC = ChunkedPrefill(8, 16, async_scheduling=True)
SYNC = replace(ASYNC, async_scheduling=False)


def times(told: Told) -> list[tuple[float, float, float]]:
    """When each step was planned, began and ended."""
    return [(step["t_schedule_s"], step["t_start_s"], step["t_end_s"]) for step in told.decisions]


def test_a_step_is_planned_while_the_one_before_it_runs() -> None:
    """The first two at once. With max_tokens reached nothing is left to plan, and that plan takes no time."""
    told = serve(ASYNC, [(5, 3)])
    assert told.scheduled == [{"0": 5}, {"0": 1}, {"0": 1}, {}]
    assert times(told) == [(0.0, 0.0, 1.0), (0.0, 1.0, 2.0), (1.0, 2.0, 3.0), (2.0, 3.0, 3.0)]
    assert told.steps("running") == [["0"]] * 4
    assert told.steps("finished") == [[], [], ["0"], []]
    assert told.column("first_token_s") == [1.0]
    assert told.column("last_token_s") == told.column("released_s") == [3.0]


def test_an_answer_that_ends_by_itself_is_given_a_token_too_many() -> None:
    """Nobody knows at 2 s that the third token, which comes at 3 s, is the last."""
    told = serve(ASYNC, [(5, 3)], max_tokens=9)
    assert told.scheduled == [{"0": 5}, {"0": 1}, {"0": 1}, {"0": 1}]
    assert times(told)[-1] == (2.0, 3.0, 4.0)
    assert told.column("last_token_s") == told.column("released_s") == [3.0]
    assert told.column("output_tokens") == [3]
    rows = told.records.rows
    assert rows.tokens.tolist()[-1] == rows.padded_tokens.tolist()[-1] == rows.held.tolist()[-1] == 1
    assert (rows.decoding * rows.repeat).sum() == 2


def test_who_comes_during_a_step_waits_for_the_plan_after_the_next() -> None:
    """Arrived at 1.5 s, while the second step runs and the third is planned: the fourth is planned at 2 s."""
    lengths, arrivals = [(5, 6), (4, 2)], [0.0, 1.5]
    assert serve(ASYNC, lengths, arrivals).column("first_token_s") == [1.0, 4.0]
    assert serve(SYNC, lengths, arrivals).column("first_token_s") == [1.0, 3.0]


def test_slot_and_blocks_come_free_a_plan_later() -> None:
    """One slot. The first has its last token at 2 s; the plan made at 1 s could not know, that of 2 s can."""
    one = replace(ASYNC, max_num_seqs=1)
    told = serve(one, [(5, 2), (4, 2)])
    assert told.scheduled == [{"0": 5}, {"0": 1}, {}, {"1": 4}, {"1": 1}, {}]
    assert told.column("scheduled_s") == [0.0, 2.0]
    wasteful = serve(one, [(5, 2), (4, 1)], max_tokens=9)
    assert wasteful.scheduled == [{"0": 5}, {"0": 1}, {"0": 1}, {"1": 4}, {"1": 1}]
    assert wasteful.column("scheduled_s") == [0.0, 2.0]
    assert wasteful.column("last_token_s") == [2.0, 4.0]


def test_the_last_token_of_a_victim_comes_while_it_waits() -> None:
    """4 blocks. The third step needs one for the first request; the second, whose last token is on its way, leaves."""
    told = serve(ASYNC, [(7, 4), (7, 2)], memory=Memory(5, 4))
    assert told.scheduled[:3] == [{"0": 7, "1": 7}, {"0": 1, "1": 1}, {"0": 1}]
    assert told.steps("preempted")[2] == ["1"]
    assert told.steps("waiting")[2] == ["1"]
    assert told.steps("finished")[1] == ["1"]
    assert told.column("last_token_s") == [4.0, 2.0]
    assert told.column("preemptions") == [0, 1]
    assert told.column("recomputed_tokens") == [0, 0], "what it lost is not needed"
    requeues = told.records.requeues
    assert (requeues.from_s.tolist(), requeues.to_s.tolist()) == ([1.0], [2.0])


def test_a_token_too_many_can_cost_its_own_victim() -> None:
    """8 + 1 tokens fill 2 blocks and would take a third, which is not there: it leaves, and ends by itself."""
    told = serve(ASYNC, [(7, 2)], max_tokens=5, memory=Memory(3, 4))
    assert told.scheduled == [{"0": 7}, {"0": 1}, {}]
    assert told.steps("preempted") == [[], [], ["0"]]
    assert told.column("last_token_s") == [2.0]
    assert told.column("output_tokens") == [2]


def test_gaps_between_tokens_are_those_of_the_steps() -> None:
    """A long prompt beside decodes; the answers end by themselves."""
    told = serve(ASYNC, [(4, 5), (20, 3)], [0.0, 0.5], max_tokens=50)
    requests = told.records.requests
    assert requests.output_tokens.tolist() == [5, 3]
    np.testing.assert_array_equal(requests.last_token_s - requests.first_token_s, [4.0, 2.0])


class Swapping:
    """Swaps whoever decodes, and says that its steps overlap."""

    max_num_seqs = 4
    traits = Traits(async_scheduling=True)

    def plan(self, view: View) -> StepPlan:
        decoding: list[Any] = [request for request in view.running if request.is_decoding]
        if decoding:
            return StepPlan(preempt=tuple([Preemption(request, swap=True) for request in decoding]))
        return SYNC.plan(view)


def test_nobody_is_swapped_while_a_step_runs() -> None:
    with pytest.raises(PolicyError, match="swaps, which asynchronous scheduling does not allow"):
        serve(Swapping(), [(4, 5)], memory=Memory(100, 4, 100))
