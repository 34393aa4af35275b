"""Priority scheduling with preemption by hand."""

from typing import Any

import pytest

from simulator.policies.preemptive import Preemptive
from simulator.results.records import Status
from tests.hand import serve
from tests.laws.scenarios import Memory


def test_a_higher_priority_takes_the_slot_at_the_next_step() -> None:
    """Comes at 2.5 s, runs from 3 s; the other has 3 of its tokens by then, and prefills 4 + 3 again afterwards."""
    told = serve(Preemptive(1, 64), [(4, 6), (5, 3)], [0.0, 2.5], priority=[1, 0])
    assert told.scheduled == [{"0": 4}, {"0": 1}, {"0": 1}, {"1": 5}, {"1": 1}, {"1": 1}, {"0": 7}, {"0": 1}, {"0": 1}]
    assert told.steps("preempted")[3] == ["0"]
    assert told.column("scheduled_s") == [0.0, 3.0]
    assert told.column("last_token_s") == [9.0, 6.0]
    assert told.column("recomputed_tokens") == [6, 0]
    assert told.column("requeued_s") == [3.0, 0.0]


@pytest.mark.parametrize("priority", [[0, 0], [0, 1]])
def test_equals_and_betters_are_never_displaced(priority: list[int]) -> None:
    told = serve(Preemptive(1, 64), [(4, 6), (5, 3)], [0.0, 2.5], priority=priority)
    assert told.column("scheduled_s") == [0.0, 6.0]
    assert told.column("preemptions") == [0, 0]


def test_while_there_is_room_nobody_leaves() -> None:
    told = serve(Preemptive(2, 64), [(4, 6), (5, 3)], [0.0, 2.5], priority=[1, 0])
    assert told.column("scheduled_s") == [0.0, 3.0]
    assert told.column("preemptions") == [0, 0]
    assert told.column("last_token_s") == [6.0, 6.0]


def test_the_least_important_leaves_and_of_equals_the_latest() -> None:
    told = serve(Preemptive(4, 64), [(4, 9)] * 4 + [(4, 2)], [0.0] * 4 + [1.5], priority=[1, 2, 1, 2, 0])
    assert told.steps("preempted")[2] == ["3"]
    told = serve(Preemptive(3, 64), [(4, 9)] * 3 + [(4, 2)], [0.0] * 3 + [1.5], priority=[1, 1, 1, 0])
    assert told.steps("preempted")[2] == ["2"]


def test_as_many_leave_as_must() -> None:
    """8 blocks, 3 runners of 2 each and then 3: a prompt of 14 needs 4, two leave; a fourth slot is free."""
    told = serve(
        Preemptive(4, 64), [(5, 9)] * 3 + [(14, 2)], [0.0] * 3 + [1.5], priority=[1, 1, 1, 0], memory=Memory(9, 4)
    )
    assert told.steps("preempted")[2] == ["2"]
    assert told.steps("running")[2] == ["0", "1", "3"]
    tight = serve(
        Preemptive(4, 64), [(5, 9)] * 3 + [(18, 2)], [0.0] * 3 + [1.5], priority=[1, 1, 1, 0], memory=Memory(9, 4)
    )
    assert tight.steps("preempted")[2] == ["2", "1"]
    assert tight.column("output_tokens") == [9, 9, 9, 2]


def test_nobody_leaves_for_who_would_not_fit_all_the_same() -> None:
    """An urgent prompt needs more than what the less important hold: it waits, and they go on."""
    told = serve(
        Preemptive(4, 64), [(20, 4), (4, 4), (16, 2)], [0.0, 0.0, 1.5], priority=[0, 2, 1], memory=Memory(9, 4)
    )
    assert told.column("preemptions") == [0, 0, 0]
    assert told.column("scheduled_s") == [0.0, 0.0, 4.0]


def test_nobody_passes_who_is_more_important() -> None:
    """The head does not fit, and those behind it that would are not let in before."""
    told = serve(Preemptive(4, 64), [(20, 4), (20, 2), (1, 2)], priority=[0, 0, 1], memory=Memory(9, 4))
    assert told.column("scheduled_s") == [0.0, 4.0, 4.0]


def test_who_left_returns_before_who_came_later() -> None:
    """A victim goes back to its place in the order: before an equal that arrived after it."""
    told = serve(Preemptive(1, 64), [(4, 4), (4, 2), (4, 2)], [0.0, 0.25, 1.5], priority=[1, 1, 0])
    assert told.column("last_token_s") == [6.0, 8.0, 4.0]


def test_one_after_the_other_takes_the_place() -> None:
    """Each of four more important than the one before, a second apart: the last to come is the first to be done."""
    told = serve(Preemptive(1, 64), [(4, 6)] * 4, [0.0, 1.5, 2.5, 3.5], priority=[3, 2, 1, 0], memory=Memory(101, 4))
    assert told.column("scheduled_s") == [0.0, 2.0, 3.0, 4.0]
    done = told.column("last_token_s")
    assert done == sorted(done, reverse=True)
    assert done[3] == 10.0
    assert told.column("output_tokens") == [6] * 4
    assert told.column("preemptions") == [1, 1, 1, 0]


def test_a_prompt_under_way_can_be_displaced() -> None:
    """8 tokens a step: of its 20, 16 are computed when a better one comes, and all are computed again."""
    told = serve(Preemptive(1, 8), [(20, 2), (4, 2)], [0.0, 1.5], priority=[1, 0])
    assert told.scheduled == [{"0": 8}, {"0": 8}, {"1": 4}, {"1": 1}, {"0": 8}, {"0": 8}, {"0": 4}, {"0": 1}]
    assert told.column("recomputed_tokens") == [16, 0]


def test_the_budget_goes_to_decodes_then_to_the_most_important_prompt() -> None:
    told = serve(Preemptive(8, 8), [(2, 9), (12, 2), (6, 2)], [0.0, 0.5, 1.5], priority=[0, 1, 0])
    assert told.scheduled[:5] == [
        {"0": 2},
        {"0": 1, "1": 7},
        {"0": 1, "1": 5, "2": 2},
        {"0": 1, "1": 1, "2": 4},
        {"0": 1, "2": 1},
    ]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_displaced_give_their_token_back(mode: Any) -> None:
    """8 tokens a step, 3 decode and one of them leaves: 6 are left for the prompt of the urgent one, then the rest."""
    told = serve(
        Preemptive(3, 8, mode), [(2, 9)] * 3 + [(10, 2)], [0.0] * 3 + [1.5], priority=[1, 1, 1, 0],
        memory=Memory(101, 4, 100),
    )  # fmt: skip
    assert told.steps("preempted")[2] == ["2"]
    assert told.scheduled[2:4] == [{"0": 1, "1": 1, "3": 6}, {"0": 1, "1": 1, "3": 4}]


def test_when_decoding_lacks_a_block_the_least_important_leaves() -> None:
    """5 blocks of 4: in their second decode both need one more, and one is left."""
    told = serve(Preemptive(8, 64), [(7, 6), (7, 6)], priority=[1, 0], memory=Memory(6, 4))
    assert told.steps("preempted")[2] == ["0"]
    assert told.column("last_token_s") == [10.0, 6.0]
    equal = serve(Preemptive(8, 64), [(7, 6), (7, 6)], memory=Memory(6, 4))
    assert equal.steps("preempted")[2] == ["1"]


def test_swapped_out_when_blocks_run_out_and_back_when_there_are() -> None:
    """The same with room on the host: 2 blocks go out, come back at 6 s with all 8 tokens, and nothing is prefilled."""
    told = serve(Preemptive(8, 64, "swap"), [(7, 6), (7, 6)], memory=Memory(6, 4, 2))
    assert told.scheduled == [{"0": 7, "1": 7}, {"0": 1, "1": 1}, *[{"0": 1}] * 4, *[{"1": 1}] * 4]
    assert told.steps("swapped_out")[2] == ["1"]
    assert told.steps("swapped_in")[6] == ["1"]
    assert told.steps("admitted")[6] == {}
    assert told.column("swapped_out_blocks") == [0, 2]
    assert told.column("recomputed_tokens") == [0, 0]


def test_a_crowd_of_all_priorities_loses_nobody() -> None:
    """More important ones keep coming; with little memory everybody gets all tokens in the end."""
    count = 60
    lengths = [(3 + 7 * i % 19, 2 + 5 * i % 17) for i in range(count)]
    arrivals = [0.75 * i for i in range(count)]
    for mode in ("recompute", "swap"):
        told = serve(
            Preemptive(4, 16, mode), lengths, arrivals, priority=[(i * 7) % 5 for i in range(count)],
            memory=Memory(15, 4, 20),
        )  # fmt: skip
        assert told.column("status") == [Status.FINISHED] * count
        assert told.column("output_tokens") == [output for _, output in lengths]
        assert sum(told.column("preemptions")) > 10


def test_the_most_important_do_as_if_alone() -> None:
    """Whatever else there is, who outranks everybody waits for the end of a step and no longer."""
    lengths = [(4, 30)] * 6 + [(4, 3)] * 3
    arrivals = [0.0] * 6 + [5.5, 15.5, 25.5]
    told = serve(Preemptive(3, 64), lengths, arrivals, priority=[1] * 6 + [0] * 3)
    assert told.column("scheduled_s")[6:] == [6.0, 16.0, 26.0]
    assert told.column("last_token_s")[6:] == [9.0, 19.0, 29.0]
