"""Clients by hand: what happens at which time, and in which order at one time."""

from dataclasses import replace
from math import inf, isnan
from typing import Any

import numpy as np
import pytest

from simulator.engine.admission import ReplicaLoad
from simulator.errors import InputError
from simulator.fleet.router import Router
from simulator.front_end import FrontEnd
from simulator.request import ArrivingRequest
from simulator.results.records import Records, Status
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from simulator.traffic import clients
from simulator.traffic.sources import Script
from simulator.workload import MOST_ATTEMPTS, Client, ClosedLoop, Workload, uniform
from tests.laws.scenarios import Memory, make_policy

STEP_S = 0.25  # exact in binary: times can be compared


def workload(arrival_s: list[float], outputs: list[int], **columns: Any) -> Workload:
    """Prompts of one token: a request alone takes a step a token of its answer."""
    count = len(outputs)
    ones = np.ones(count, dtype=np.int64)
    return Workload(
        np.array(arrival_s, dtype=np.float64), ones, np.array(outputs, dtype=np.int64), ones * 1000, ones * 0, ones * 0,
        **columns,
    )  # fmt: skip


def run(
    work: Workload, *, slots: int = 1, name: str = "chunked_prefill", policy: dict[str, Any] | None = None, **keys: Any
) -> Records:
    made = make_policy(name, slots, 64, **policy or {})
    return simulate(work, make_policy=lambda: made, kv=Memory(1001, 16), cost=Linear(STEP_S, 0.0, 0.0), **keys).records


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_chain_of_answers(fast_forward: bool) -> None:
    """0 is answered at 1.0, 1 comes at 1.5; it is answered at 2.0, when 2 comes at once and is scheduled at once."""
    work = workload([0.0, 0.0, 0.0], [4, 2, 1], after_row=np.array([-1, 0, 1]), delay_s=np.array([0.0, 0.5, 0.0]))
    requests = run(work, fast_forward=fast_forward).requests
    assert requests.arrival_s.tolist() == [0.0, 1.5, 2.0]
    assert requests.scheduled_s.tolist() == [0.0, 1.5, 2.0]
    assert requests.last_token_s.tolist() == [1.0, 2.0, 2.25]


def test_an_answer_at_once_is_seen_by_the_decision_of_that_time() -> None:
    """Beside a long answer: what follows the short one at 0.5 is in the step that begins at 0.5."""
    work = workload([0.0, 0.0, 0.0], [8, 2, 1], after_row=np.array([-1, -1, 1]), delay_s=np.zeros(3))
    assert run(work, slots=2).requests.scheduled_s.tolist() == [0.0, 0.0, 0.5]


@pytest.mark.parametrize(
    ("timeout_s", "status"), [(0.75, Status.ABORTED), (1.0, Status.ABORTED), (1.25, Status.FINISHED)]
)
def test_an_answer_at_the_end_of_the_timeout_is_too_late(timeout_s: float, status: Status) -> None:
    records = run(workload([0.0], [4], clients=(Client(timeout_s=timeout_s),)))
    assert records.requests.status[0] == status
    assert records.calls is not None
    assert (records.calls.left_s[0] == timeout_s) == (status == Status.ABORTED)


@pytest.mark.parametrize(("policy", "token_s"), [({}, 1.25), ({"async_scheduling": True}, 1.5)])
def test_a_first_token_must_be_there(policy: dict[str, Any], token_s: float) -> None:
    """1 waits for 0, which takes until 1.0: an asynchronous scheduler knows of its token a step before it is there."""
    for timeout_s in (token_s - 0.125, token_s, token_s + 0.125):
        work = workload([0.0, 0.0], [4, 8], clients=(Client(ttft_timeout_s=timeout_s),))
        found = run(work, policy=policy).requests
        in_time = timeout_s > token_s
        assert found.status[1] == (Status.FINISHED if in_time else Status.ABORTED)
        assert in_time == (not isnan(found.first_token_s[1]))


def test_an_answer_that_comes_whole_has_no_first_token_before() -> None:
    work = workload([0.0], [8], clients=(Client(ttft_timeout_s=1.0),))
    records = run(work, name="static", policy={"batch_timeout_s": 0.0, "stream": False})
    assert records.requests.status[0] == Status.ABORTED


def test_attempts_follow_with_their_backoff() -> None:
    """A blocker of 40 steps: attempts leave after 1 s, and come 0.5, 1 and 1.5 (the largest) later."""
    patient, hasty = Client(), Client(timeout_s=1.0, max_attempts=4, backoff_s=0.5, max_backoff_s=1.5)
    work = Workload(
        np.zeros(2), np.ones(2, dtype=np.int64), np.array([40, 1]), np.full(2, 100), np.zeros(2, dtype=np.int64),
        np.array([0, 1]), class_names=("a", "b"), clients=(patient, hasty),
    )  # fmt: skip
    records = run(work)
    assert records.requests.arrival_s.tolist() == [0.0, 0.0, 1.5, 3.5, 6.0]
    assert records.requests.status.tolist() == [Status.FINISHED, *[Status.ABORTED] * 4]
    assert records.request_ids == ("0", "1", "1#2", "1#3", "1#4")
    assert records.calls is not None
    assert records.calls.attempt.tolist() == [1, 1, 2, 3, 4]
    assert records.calls.first_row.tolist() == [0, 1, 1, 1, 1]
    assert records.calls.left_s.tolist()[1:] == [1.0, 2.5, 4.5, 7.0]


def test_a_full_queue_is_tried_again_and_a_request_that_never_fits_is_not() -> None:
    again = Client(max_attempts=3, backoff_s=1.0, backoff_factor=1.0)
    work = workload([0.0, 0.0, 0.0, 0.0], [8, 1, 1, 1], clients=(again,))
    work.input_tokens[3] = 100_000
    records = run(work, max_queued_requests=1)
    assert records.calls is not None
    # 0 is taken into the batch after all of time 0 have come: 1 and 2 find it waiting, and 2 later finds 1
    assert records.calls.attempt.tolist() == [1, 1, 1, 1, 2, 2, 3]
    assert records.requests.arrival_s.tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0]
    assert records.requests.status.tolist() == [0, 1, 1, 1, 0, 1, 1]


def test_a_client_that_is_not_heard_leaves_the_server_at_work() -> None:
    """The first answer takes the slot until 2.0 though its client left at 1.0: the second waits for it."""
    work = workload([0.0, 0.0], [8, 1], clients=(Client(timeout_s=1.0, cancels=False),))
    requests = run(work).requests
    assert requests.status.tolist() == [Status.ABORTED, Status.ABORTED]
    assert requests.last_token_s.tolist() == [2.0, 2.25]
    assert requests.aborted_tokens.tolist() == [8, 1]


def test_users_take_from_one_pool() -> None:
    """Two users, one slot: chains in the order of the pool, each after its own think time."""
    think_s = [0.0, 0.25, 1.0, 0.5]

    def pool(count: int) -> Workload:
        return workload(
            [0.0] * count, [2] * count, after_row=np.full(count, -1),
            delay_s=np.array([think_s[row % 4] for row in range(count)]),
            request_ids=[f"p{row}" for row in range(count)],
        )  # fmt: skip

    records = run(workload([], [], loops=(ClosedLoop(2, pool, 4),)))
    assert records.request_ids == ("p0", "p1", "p2", "p3")
    assert records.requests.arrival_s.tolist() == [0.0, 0.25, 1.5, 1.5]
    assert records.requests.last_token_s.tolist() == [0.5, 1.0, 2.0, 2.5]


def test_nothing_is_issued_at_the_end_or_later() -> None:
    work = workload([0.0, 1.0, 0.0], [4, 4, 1], after_row=np.array([-1, -1, 0]), delay_s=np.zeros(3), until_s=1.0)
    assert run(work).requests.arrival_s.tolist() == [0.0]


def test_circles_without_time_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed loop without thinking, of requests that never fit."""
    monkeypatch.setattr(clients, "MOST_AT_ONCE", 500)

    def pool(count: int) -> Workload:
        found = workload([0.0] * count, [1] * count, after_row=np.full(count, -1), delay_s=np.zeros(count))
        found.input_tokens[:] = 100_000
        return found

    with pytest.raises(InputError, match="500 requests follow one another at 0 s"):
        run(workload([], [], loops=(ClosedLoop(1, pool),), until_s=5.0))


class Scan:
    """The least loaded replica, found by looking at all of them."""

    def choose(self, request: ArrivingRequest, replicas: Any) -> ReplicaLoad:
        found: ReplicaLoad = min(replicas, key=lambda replica: replica.num_unfinished)
        return found


def test_what_follows_at_once_finds_the_load_of_that_time() -> None:
    """The router's index knows of an end at the moment at which the next request is sent because of it."""
    rng = np.random.default_rng(3)
    outputs = rng.integers(1, 9, 300).tolist()
    after = np.array([-1] * 12 + list(range(288)))
    work = workload([0.0] * 300, outputs, after_row=after, delay_s=np.zeros(300))
    routers: list[str | Router] = ["least_loaded", Scan()]
    ours, theirs = (run(work, slots=3, replicas=4, router=router).requests for router in routers)
    assert ours.replica.tolist() == theirs.replica.tolist()


# Backoff


def test_backoff_grows_up_to_its_limit() -> None:
    client = Client(backoff_s=0.5, backoff_factor=3.0, max_backoff_s=10.0)
    assert [client.backoff(0, attempt) for attempt in (1, 2, 3, 4, 900)] == [0.5, 1.5, 4.5, 10.0, 10.0]
    assert Client(backoff_s=1.0, backoff_factor=1000.0).backoff(0, MOST_ATTEMPTS) == inf


def test_random_numbers_of_splitmix64() -> None:
    """The first of seed 1234567, as the reference implementation prints them (S. Vigna, splitmix64.c)."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [uniform(1234567, index) for index in range(4)] == [(value >> 11) * 2.0**-53 for value in expected]


def test_a_request_is_numbered_within_its_class() -> None:
    """By the number it draws its jitter: rows of other classes between do not count."""
    for class_index in ([0, 0, 1, 0, 1], [1, 0, 2, 1, 0, 0, 1, 2]):
        work = workload([0.0] * len(class_index), [1] * len(class_index))
        work = replace(work, class_index=np.array(class_index), class_names=("a", "b", "c"))
        script = Script(work)
        for row, index in enumerate(class_index):
            assert script.number(row) == class_index[:row].count(index)


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize(("front_end_s", "tokens"), [(0.0, 3), (0.5, 1)])
def test_a_request_of_its_own_patience(fast_forward: bool, front_end_s: float, tokens: int) -> None:
    """The client of 0 leaves 0.9 s after its arrival; the step that then runs is lost. 1 waits for ever."""
    work = workload([0.0, 0.0], [8, 2], patience_s=np.array([0.9, np.nan]))
    records = run(work, fast_forward=fast_forward, front_end=FrontEnd(front_end_s))
    requests = records.requests
    assert requests.status.tolist() == [Status.ABORTED, Status.FINISHED]
    assert requests.output_tokens.tolist() == [tokens, 2]
    assert records.calls is not None
    assert records.calls.left_s.tolist()[0] == 0.9
