"""The waiting queue: its orders, and what returns where."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.queues import QUEUES, Order, WaitingQueue, make_queue, order_parameters
from simulator.request import Request
from simulator.request_state import DecodeClock, RequestState
from tests.examples import examples

CLOCK = DecodeClock(16)


def request(row: int, priority: int = 0, **more: Any) -> RequestState:
    """A request that arrives at `row` seconds."""
    return RequestState(Request(row, str(row), float(row), 4, 4, 4, priority)._replace(**more), CLOCK)


def rows(queue: WaitingQueue) -> list[int]:
    return [waiting.row for waiting in queue]


def test_first_come_first_served() -> None:
    queue = make_queue("fcfs")
    for row, priority in ((0, 2), (1, 0), (2, 1)):
        queue.push(request(row, priority))
    assert rows(queue) == [0, 1, 2]
    assert queue.head.row == 0
    assert len(queue) == 3


def test_the_preempted_return_to_the_front() -> None:
    """Of several victims the last is in front: victims are taken latest first, so their order is as it was."""
    queue = make_queue("fcfs")
    queue.push(request(5))
    for victim in (4, 3, 2):
        queue.put_back(request(victim))
    assert rows(queue) == [2, 3, 4, 5]


def test_priority_first_then_arrival() -> None:
    queue = make_queue("priority")
    for row, priority in ((0, 2), (1, 0), (2, 2), (3, -1), (4, 0)):
        queue.push(request(row, priority))
    assert rows(queue) == [3, 1, 4, 0, 2]
    assert queue.head.row == 3


def test_the_preempted_return_to_their_place() -> None:
    queue = make_queue("priority")
    for row, priority in ((7, 1), (8, 0), (9, 1)):
        queue.push(request(row, priority))
    queue.put_back(request(2, 1))
    queue.put_back(request(5, 0))
    assert rows(queue) == [5, 8, 2, 7, 9]


# ---------------------------------------------------------------------------------------------------------------- sjf


def test_the_shortest_expected_output_first() -> None:
    """A prediction goes before the cap; without one the cap is all that is known."""
    queue = make_queue("sjf")
    for row, predicted, cap in ((0, 50, 100), (1, None, 30), (2, 7, 100), (3, 30, 100), (4, None, 7)):
        queue.push(request(row, predicted_output_tokens=predicted, max_tokens=cap))
    assert rows(queue) == [2, 4, 1, 3, 0]
    queue.put_back(request(9, predicted_output_tokens=29))
    assert rows(queue) == [2, 4, 9, 1, 3, 0]


def test_who_has_waited_longer_than_aging_goes_first() -> None:
    queue = make_queue("sjf", aging_s=10.0)
    for row, predicted in ((0, 9), (1, 8), (2, 1), (3, 7)):
        queue.push(request(row, predicted_output_tokens=predicted))
    for now_s, expected in ((10.0, [2, 3, 1, 0]), (10.5, [0, 2, 3, 1]), (12.5, [0, 1, 2, 3])):
        queue.at(now_s)
        assert rows(queue) == expected
        assert queue.head.row == expected[0]
    queue.remove(next(iter(queue)))
    queue.push(request(12, predicted_output_tokens=1))
    queue.put_back(request(0, predicted_output_tokens=9))
    assert rows(queue) == [0, 1, 2, 12, 3], "who comes back has been there since its arrival"
    assert not queue.timeless
    assert make_queue("sjf").timeless


def test_no_order_can_tell_how_long_an_answer_will_be() -> None:
    for order in QUEUES:
        queues = make_queue(order), make_queue(order)
        for queue, longer in zip(queues, (0, 1000), strict=True):
            for row in range(8):
                more: dict[str, Any] = {
                    "output_tokens": 1 + longer * (row % 3),
                    "max_tokens": 2000,
                    "class_name": "ab"[row % 2],
                }
                queue.push(request(row, predicted_output_tokens=5 * row % 7 or None, **more))
            queue.at(9.0)
        assert rows(queues[0]) == rows(queues[1]), order


# ---------------------------------------------------------------------------------------------------------------- edf


def test_the_earliest_deadline_first() -> None:
    """Deadlines count from arrivals; the order's own is for requests without one."""
    limits = {0: 9.0, 1: None, 2: 1.0, 3: None, 4: 5.0}
    found = []
    for deadline_s in (None, 3.0):
        queue = make_queue("edf", deadline_s=deadline_s)
        for row, limit in limits.items():
            queue.push(request(row, deadline_s=limit))
        found.append(rows(queue))
    assert found == [[2, 0, 4, 1, 3], [2, 1, 3, 0, 4]]


# --------------------------------------------------------------------------------------------------------------- all


def test_unknown_orders_are_refused() -> None:
    with pytest.raises(InputError, match="unknown queue order 'lifo'") as caught:
        make_queue("lifo")
    assert "dfs-weight, edf, fair, fcfs, importance, in-turn, lof, lpm, mlfq, priority" in str(caught.value)


@pytest.mark.parametrize(
    ("order", "parameters", "message"),
    [
        ("fcfs", {"aging_s": 1.0}, "(?s)fcfs has no parameter 'aging_s'.*takes none"),
        ("sjf", {"ageing_s": 1.0}, "(?s)sjf has no parameter 'ageing_s'.*did you mean aging_s"),
        ("sjf", {"aging_s": -1.0}, "aging_s must be a number of at least 0 or null, not"),
        ("sjf", {"aging_s": float("nan")}, "aging_s must be a number of at least 0 or null, not"),
        ("edf", {"deadline_s": -1.0}, "deadline_s must be a number of at least 0"),
        ("fair", {"max_wait_s": 0.0}, "max_wait_s must be a number above 0"),
        ("fair", {"class_weights": {"a": 0.0}}, "class_weights must be a mapping to a number of at least 1e-06"),
        ("vtc", {"w_p": 0.0, "w_q": 0.0}, "one of w_p and w_q must be above 0"),
        ("vtc", {"w_p": -1.0}, "w_p must be a number of at least 0, not -1.0"),
    ],
)
def test_parameters_that_an_order_cannot_take(order: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_queue(order, **parameters)


def test_an_order_brings_its_parameters_along() -> None:
    order = Order("sjf", aging_s=2.0)
    assert order == "sjf"
    assert repr(order) == "Order('sjf', aging_s=2.0)"
    assert not make_queue(order).timeless
    assert make_queue(order, aging_s=None).timeless
    for again in (copy.deepcopy(order), pickle.loads(pickle.dumps(order))):
        assert (again, again.parameters) == ("sjf", {"aging_s": 2.0})
    assert {name: known.default for name, known in order_parameters(order).items()} == {"aging_s": None}
    assert order_parameters("fcfs") == order_parameters("priority") == {}


# In each order who is to be first of a list of requests in order of their coming (the returned in front): as a sort.
SORTED: dict[str, Callable[[RequestState], tuple[Any, ...]]] = {
    "fcfs": lambda _: (),
    "priority": lambda r: (r.priority, r.row),
    "sjf": lambda r: (r.max_tokens if r.predicted_output_tokens is None else r.predicted_output_tokens, r.row),
    "edf": lambda r: (float("inf") if r.deadline_s is None else r.arrival_s + r.deadline_s, r.row),
}


@pytest.mark.parametrize("order", SORTED)
@given(data=st.data())
@examples(60)
def test_a_queue_is_a_sorted_list(order: str, data: st.DataObject) -> None:
    """Push, put back and remove in any order, beside a list that is sorted anew each time."""
    queue = make_queue(order)
    assert len(queue) == 0
    model: list[RequestState] = []
    out: list[RequestState] = []
    for row in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["push", "push", "remove", "take the head", "put back"]))
        if what == "push":
            seen: dict[str, Any] = {
                "predicted_output_tokens": data.draw(st.sampled_from([None, 1, 4, 9])),
                "deadline_s": data.draw(st.sampled_from([None, 0.0, 2.0])),
            }
            model.append(request(row, data.draw(st.integers(-1, 1)), **seen))
            queue.push(model[-1])
        elif what == "put back" and out:
            queue.put_back(out[-1])
            model.insert(0, out.pop())
        elif model and what in ("remove", "take the head"):
            gone = data.draw(st.sampled_from(model)) if what == "remove" else queue.head
            queue.remove(gone)
            model.remove(gone)
            out.append(gone)
        model.sort(key=SORTED[order])
        assert list(queue) == model
        assert len(queue) == len(model)
        if model:
            assert queue.head is model[0]


ALL = [*QUEUES, Order("sjf", aging_s=3.0), Order("fair", max_wait_s=None)]


@pytest.mark.parametrize("order", ALL, ids=repr)
@given(data=st.data())
@examples(60)
def test_the_iteration_is_who_would_be_taken_one_by_one(order: str, data: st.DataObject) -> None:
    """What a plan looks through is what happens if it admits them all: heads, in turn. And looking changes nothing."""
    queue = make_queue(order)
    queue.at(0.0)
    for row in range(data.draw(st.integers(1, 20))):
        seen: dict[str, Any] = {
            "class_name": data.draw(st.sampled_from("abc")),
            "predicted_output_tokens": data.draw(st.integers(1, 9)),
            "input_tokens": data.draw(st.integers(1, 9)),
        }
        queue.push(request(row, **seen))
        if data.draw(st.booleans()):
            queue.at(float(row))
            queue.remove(queue.head)
    queue.at(30.0)
    planned = list(queue)
    assert list(queue) == planned
    taken = []
    while len(queue):
        taken.append(queue.head)
        queue.remove(queue.head)
    assert taken == planned


@pytest.mark.parametrize("order", ALL, ids=repr)
def test_looking_at_the_head_does_not_walk_the_queue(order: str) -> None:
    """Iteration is lazy: the first of many costs the first."""
    queue = make_queue(order)
    for row in range(1000):
        queue.push(request(row))
    queue.at(999.0)
    looked = iter(queue)
    assert next(looked).row == 0
    assert iter(looked) is looked, "an iterator, not a copy"


@pytest.mark.parametrize("order", ALL, ids=repr)
@given(data=st.data())
@examples(30)
def test_who_gives_up_leaves_the_others_as_they_were(order: str, data: st.DataObject) -> None:
    queue = make_queue(order)
    queue.at(0.0)
    waiting = [
        request(row, class_name=data.draw(st.sampled_from("abc"))) for row in range(data.draw(st.integers(1, 12)))
    ]
    for each in waiting:
        queue.push(each)
    queue.at(1.0)
    gone = data.draw(st.sampled_from(waiting))
    left = [each for each in queue if each is not gone]
    queue.drop(gone)
    assert len(queue) == len(left)
    assert set(queue) == set(left)
    if order != "vtc":  # which reckons with the prompts of all that come before
        assert list(queue) == left
