"""The waiting queue: its orders, and what returns where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.batch import Batch
from simulator.errors import InputError
from simulator.live import LiveRequest
from simulator.queues import QUEUES, WaitingQueue, make_queue
from simulator.request import Request

BATCH = Batch(16)


def request(row: int, priority: int = 0) -> LiveRequest:
    return LiveRequest(Request(row, str(row), float(row), 4, 4, 4, priority), BATCH)


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


def test_unknown_orders_are_refused() -> None:
    with pytest.raises(InputError, match="unknown queue order 'lifo'") as caught:
        make_queue("lifo")
    assert "fcfs, priority" in str(caught.value)


@pytest.mark.parametrize("order", QUEUES)
@given(data=st.data())
@settings(max_examples=60)
def test_a_queue_is_a_sorted_list(order: str, data: st.DataObject) -> None:
    """Push, put back and remove in any order, beside a list that is sorted anew each time."""
    queue = make_queue(order)
    assert len(queue) == 0
    model: list[LiveRequest] = []
    out: list[LiveRequest] = []
    for row in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["push", "push", "remove", "take the head", "put back"]))
        if what == "push":
            out.append(request(row, data.draw(st.integers(-1, 1))))
            queue.push(out[-1])
            model.append(out.pop())
        elif what == "put back" and out:
            queue.put_back(out[-1])
            model.insert(0, out.pop())
        elif model and what in ("remove", "take the head"):
            gone = data.draw(st.sampled_from(model)) if what == "remove" else queue.head
            queue.remove(gone)
            model.remove(gone)
            out.append(gone)
        if order == "priority":
            model.sort(key=lambda waiting: (waiting.priority, waiting.row))
        assert list(queue) == model
        assert len(queue) == len(model)
        if model:
            assert queue.head is model[0]


@pytest.mark.parametrize("order", QUEUES)
def test_looking_at_the_head_does_not_walk_the_queue(order: str) -> None:
    """Iteration is lazy: the first of many costs the first."""
    queue = make_queue(order)
    for row in range(1000):
        queue.push(request(row))
    looked = iter(queue)
    assert next(looked).row == 0
    assert iter(looked) is looked, "an iterator, not a copy"
