"""Requests that wait for several others, by hand and against a slow reference."""

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics.summary import summarize
from simulator.results.records import Status
from simulator.traffic.sources import Call, Following
from simulator.workload import Client, ClosedLoop, Workload
from tests.simulator.traffic.test_clients import STEP_S, run, workload


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_join_comes_after_the_last_answer(fast_forward: bool) -> None:
    """0 ends at 0.5 and lets 1 and 2 go, which end at 1.0 and 2.5; 3 comes a quarter later, once."""
    work = workload(
        [0.0] * 4, [2, 2, 8, 1], after_row=np.array([-1, 0, 0, 2]), delay_s=np.array([0.0, 0.0, 0.0, 0.25]),
        also_after=[(), (), (), (1,)], task_ids=["t"] * 4,
    )  # fmt: skip
    records = run(work, slots=2, fast_forward=fast_forward)
    assert records.requests.arrival_s.tolist() == [0.0, 0.5, 0.5, 2.75]
    assert records.requests.last_token_s.tolist() == [0.5, 1.0, 2.5, 3.0]
    found = summarize(records)
    assert [found[f"{name}task_s"] for name in ("mean_", "p50_", "p99_")] == [3.0] * 3
    assert (found["tasks"], found["tasks_done"], found["mean_task_requests"]) == (1, 1, 4.0)
    assert (found["mean_task_input_tokens"], found["mean_task_output_tokens"]) == (4.0, 13.0)


def test_a_join_comes_after_the_latest_answer_whichever_is_told_of_last() -> None:
    """A front end may bring the client an answer later than one that the engine gave after it."""
    work = workload(
        [0.0] * 3, [1] * 3, after_row=np.array([-1, -1, 0]), delay_s=np.array([0.0, 0.0, 0.25]),
        also_after=[(), (), (1,)],
    )  # fmt: skip
    following = Following(work)
    assert following.calls(0, 5.0) == []
    assert following.calls(1, 3.0) == [Call(5.25, 2)]


def test_without_tasks_there_are_no_metrics_of_tasks() -> None:
    assert not [name for name in summarize(run(workload([0.0], [1]))) if "task" in name]


def test_a_join_of_a_request_that_was_given_up_never_comes() -> None:
    """1 takes too long for its client. 3, which waits for it, never comes; 4 comes. The task is not done."""
    work = workload(
        [0.0] * 5, [2, 16, 2, 1, 1], after_row=np.array([-1, 0, 0, 1, 2]), delay_s=np.zeros(5),
        also_after=[(), (), (), (2,), ()], clients=(Client(timeout_s=2.0),), task_ids=["t"] * 5,
    )  # fmt: skip
    records = run(work, slots=2)
    assert records.request_ids == ("0", "1", "2", "4")
    assert records.requests.status.tolist() == [0, Status.ABORTED, 0, 0]
    assert (summarize(records)["tasks"], summarize(records)["tasks_done"]) == (1, 0)
    assert "mean_task_s" not in summarize(records)


def test_a_user_goes_on_once_when_two_parts_of_a_chain_fail() -> None:
    """Each chain is 0, its two followers that never fit, and their join: the user takes the next chain once."""

    def pool(chains: int) -> Workload:
        place = np.arange(4 * chains) % 4
        found = workload(
            [0.0] * len(place), [1] * len(place),
            after_row=np.arange(len(place)) - np.array([len(place) + 1, 1, 2, 1])[place],
            delay_s=np.full(len(place), 0.5),
            also_after=[() if at != 3 else (row - 2,) for row, at in enumerate(place.tolist())],
        )  # fmt: skip
        found.after_row[place == 0] = -1  # type: ignore[index] # there is one
        found.input_tokens[(place == 1) | (place == 2)] = 100_000
        return found

    records = run(workload([], [], loops=(ClosedLoop(1, pool, 12),)))
    assert records.request_ids == ("0", "1", "2", "4", "5", "6", "8", "9", "10")


def reference(outputs: Sequence[int], waits: Sequence[tuple[int, ...]], delays: Sequence[float]) -> list[float]:
    """Arrivals on a machine with a slot for each request: an answer takes a step a token, from the next step on.

    Steps follow one another as long as any request is there; else one begins as the next request comes.
    """
    arrival, left, ends = [0.0 if not each else inf for each in waits], list(outputs), [inf] * len(outputs)
    now = 0.0
    while inf in ends:
        batch = [row for row, left_of in enumerate(left) if arrival[row] <= now and left_of]
        if not batch:
            now = min(at for row, at in enumerate(arrival) if ends[row] == inf)
            continue
        now += STEP_S
        for row in batch:
            left[row] -= 1
            if not left[row]:
                ends[row] = now
        for row, each in enumerate(waits):
            if each and arrival[row] == inf:
                arrival[row] = max(ends[other] for other in each) + delays[row]
    return arrival


@given(data=st.data())
def test_times_are_those_of_the_reference(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    outputs = [data.draw(st.integers(1, 9)) for _ in range(count)]
    waits = [
        tuple(sorted(data.draw(st.sets(st.integers(0, row - 1), max_size=4)))) if row else () for row in range(count)
    ]
    delays = [data.draw(st.sampled_from([0.0, 0.125, 0.25, 1.75])) if each else 0.0 for each in waits]
    work = workload(
        [0.0] * count, outputs, after_row=np.array([each[-1] if each else -1 for each in waits]),
        delay_s=np.array(delays), also_after=[each[:-1] for each in waits],
        request_ids=[str(row) for row in range(count)],
    )  # fmt: skip
    for fast_forward in (True, False):
        records = run(work, slots=count, fast_forward=fast_forward)
        ids = records.request_ids
        assert ids is not None
        assert sorted(map(int, ids)) == list(range(count))  # none lost, none twice
        found = dict(zip(map(int, ids), records.requests.arrival_s.tolist(), strict=True))
        assert [found[row] for row in range(count)] == reference(outputs, waits, delays)
