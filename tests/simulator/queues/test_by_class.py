"""The orders that know classes, fair and vtc, by hand."""

from typing import Any

import pytest

from simulator.engine.decode_batch import DecodeBatch
from simulator.queues import WaitingQueue, make_queue
from simulator.queues.fair import Fair
from simulator.queues.vtc import Vtc
from simulator.request import Request
from simulator.request_state import DecodeClock, RequestState, RequestStatus

CLOCK = DecodeClock(16)


def request(row: int, class_name: str, inputs: int = 10, cap: int = 5, **more: Any) -> RequestState:
    """A request of 10 prompt tokens and at most 5 output tokens: 20 at the prices 1 and 2. It arrives at 0 s."""
    return RequestState(Request(row, str(row), 0.0, inputs, cap, cap, 0, class_name)._replace(**more), CLOCK)


def fill(queue: WaitingQueue, classes: str) -> None:
    for row, name in enumerate(classes):
        queue.push(request(row, name))
    queue.at(0.0)


def taken(queue: WaitingQueue, count: int) -> str:
    """The classes of the next so many, each of them admitted."""
    names = ""
    for _ in range(count):
        names += queue.head.class_name
        queue.remove(queue.head)
    return names


# ---------------------------------------------------------------------------------------------------------------- fair


def test_a_flood_of_one_class_does_not_hold_up_the_other() -> None:
    """Finish times are 20, 40, 60, ... for each; ties go to the earlier arrival."""
    queue = Fair(max_wait_s=None)
    fill(queue, "aaaaaabb")
    assert [waiting.class_name for waiting in queue] == list("ababaaaa")
    assert taken(queue, 8) == "ababaaaa"


def test_a_weight_is_a_share() -> None:
    """Of weight 2, a request of 20 is 10 long: a finishes at 10, 20, ..., b at 20, 40."""
    queue = Fair({"a": 2.0}, max_wait_s=None)
    fill(queue, "bbbbaaaaaaaa")
    assert taken(queue, 12) == "abaabaabaaba"[:12]


def test_nothing_is_saved_up_and_nothing_is_owed() -> None:
    """After 100 requests of a alone, who comes first of b begins at the present virtual time, and a goes on there."""
    queue = Fair(max_wait_s=None)
    fill(queue, "a" * 100)
    taken(queue, 100)
    for row, name in enumerate("bbaa", 100):
        queue.push(request(row, name))
    assert taken(queue, 4) == "baba"


def test_longer_requests_pay_more() -> None:
    """a: 100 + 2 x 50 = 200 at once; b: 20 each, so that ten of b go before, the tenth being the later arrival."""
    queue = Fair(max_wait_s=None)
    queue.push(request(0, "a", 100, 50))
    for row in range(1, 12):
        queue.push(request(row, "b"))
    assert taken(queue, 12) == "b" * 9 + "a" + "bb"


def test_predictions_go_before_caps() -> None:
    queue = Fair(max_wait_s=None)
    queue.push(request(0, "a", 10, 1000))
    queue.push(request(1, "b", 10, 1000, predicted_output_tokens=3))
    assert taken(queue, 2) == "ba"


def test_waiting_brings_forward_by_thirty_percent_at_most() -> None:
    """a: 20 long, b: 26 long, of which waiting takes up to 7.8. b catches up after 23.1 % of 100 s."""
    queue = Fair(max_wait_s=100.0)
    queue.push(request(0, "b", 16, 5, arrival_s=0.0))
    late = request(1, "a", arrival_s=23.0)
    queue.push(late)
    queue.at(23.0)
    assert queue.head is late, "26 x 0.77 = 20.02"
    queue.at(23.5)
    assert queue.head.class_name == "b", "26 x 0.765 = 19.89; 20 x 0.995 = 19.9"
    for now_s in (30.0, 1e6):
        even = Fair(max_wait_s=100.0)
        even.push(request(0, "b", 20, 5, arrival_s=now_s - 1e6))  # 30 long, 21 with all the boost there is
        even.push(request(1, "a", arrival_s=now_s))
        even.at(now_s)
        assert even.head.class_name == "a"


@pytest.mark.parametrize(("max_wait_s", "passed"), [(None, 500), (1e9, 500), (1e-9, 350)])
def test_how_long_a_light_class_waits_at_most(max_wait_s: float | None, passed: int) -> None:
    """Of weight 1 / 500, b is 10,000 long: 500 of a, which never ends, go before it; 30 % fewer with the boost."""
    queue = Fair({"b": 1 / 500}, max_wait_s=max_wait_s)
    queue.push(request(0, "b"))
    before = 0
    for row in range(1, 2000):
        queue.push(request(row, "a", arrival_s=1.0))
        queue.at(1.0)
        if queue.head.class_name == "b":
            break
        queue.remove(queue.head)
        before += 1
    assert before == pytest.approx(passed, abs=1)


def test_the_preempted_of_a_fair_queue_return_at_the_present_virtual_time() -> None:
    queue = Fair(max_wait_s=None)
    fill(queue, "aaaabb")
    first = queue.head
    assert taken(queue, 3) == "aba"
    queue.put_back(first)
    assert queue.head is first
    assert taken(queue, 4) == "abaa"


# ----------------------------------------------------------------------------------------------------------------- vtc


def test_the_smallest_counter_first() -> None:
    """Prompts are charged at admission, 10 each: the classes take turns, the earlier arrival first."""
    queue = Vtc()
    fill(queue, "aaaabb")
    assert [waiting.class_name for waiting in queue] == list("ababaa")
    assert taken(queue, 3) == "aba"
    assert (queue.counter("a"), queue.counter("b")) == (20.0, 10.0)


def test_output_tokens_are_charged_as_they_come() -> None:
    """Two of a decode for 7 steps: 2 x 7 tokens, and 2 of their prefills, at 2 each; then one of them leaves."""
    queue, batch = Vtc(), DecodeBatch(16)
    batch.meter = queue.meter
    live = [RequestState(Request(row, str(row), 0.0, 10, 50, 50, 0, "a"), batch.clock) for row in range(2)]
    for one in live:
        queue.push(one)
        queue.remove(one)
        one.base_computed, one.base_outputs, one.last_token_s = 10, 1, 1.0
        queue.meter.sampled(one)
        batch.join(one, 49)
    batch.advance(7, 8.0)
    assert queue.counter("a") == 20 + 2 * (2 + 14)
    assert queue.meter.tokens("a") == sum(one.output_tokens_so_far for one in live)
    batch.leave(live[0])
    live[0].status = RequestStatus.SWAPPED
    batch.advance(3, 11.0)
    assert queue.counter("a") == 20 + 2 * (2 + 14 + 3)
    batch.leave(live[1])
    live[1].status = RequestStatus.SWAPPED
    batch.join(live[0], 42)
    batch.advance(1, 12.0)
    assert queue.meter.tokens("a") == 20 == sum(one.output_tokens_so_far for one in live)
    assert queue.meter.tokens("b") == 0


def test_a_class_that_comes_is_lifted_to_those_that_wait() -> None:
    """To the smallest of them; one that has had more already is not lowered."""
    queue = Vtc()
    fill(queue, "aaabbb")
    taken(queue, 5)  # a, b, a, b, a
    queue.push(request(6, "c"))
    queue.at(1.0)
    assert (queue.counter("a"), queue.counter("b"), queue.counter("c")) == (30.0, 20.0, 20.0)
    queue.push(request(7, "a"))
    queue.at(1.0)
    assert queue.counter("a") == 30.0


def test_to_an_empty_queue_a_class_comes_at_the_level_of_the_last_that_left() -> None:
    queue = Vtc()
    fill(queue, "aaa")
    taken(queue, 3)
    queue.push(request(3, "b"))
    queue.at(1.0)
    assert queue.counter("b") == 30.0
    taken(queue, 1)
    queue.push(request(4, "a"))
    queue.push(request(5, "c"))
    queue.at(2.0)
    assert (queue.counter("a"), queue.counter("c")) == (40.0, 40.0), "the last that left is b, at 40"


def test_weights_divide_the_charges() -> None:
    queue = Vtc({"a": 2.0})
    fill(queue, "bbbaaaaaa")
    assert taken(queue, 9) == "baabaabaa"


def test_a_prompt_is_charged_once() -> None:
    """Who was preempted comes back for nothing, but in its class's turn; a class that had nobody waiting is lifted."""
    queue = Vtc()
    fill(queue, "abb")
    back = queue.head
    taken(queue, 2)
    back.set_back().preemptions += 1
    queue.put_back(back)
    queue.at(1.0)
    assert queue.head is back
    assert [waiting.row for waiting in queue] == [0, 2]
    taken(queue, 1)
    assert (queue.counter("a"), queue.counter("b")) == (10.0, 10.0)


def test_vtc_by_name() -> None:
    queue = make_queue("vtc", w_p=3.0, w_q=0.0, class_weights={"a": 0.5})
    fill(queue, "ab")
    taken(queue, 2)
    assert isinstance(queue, Vtc)
    assert (queue.counter("a"), queue.counter("b")) == (60.0, 30.0)
    assert not queue.timeless


def test_who_gives_up_is_not_charged() -> None:
    """Neither its class's counter nor virtual time has moved when a request leaves without service."""
    for order in ("vtc", "fair"):
        patient, impatient = make_queue(order), make_queue(order)
        for queue in (patient, impatient):
            fill(queue, "aabb")
        extra = request(9, "a", 1000, 1000)
        impatient.push(extra)
        impatient.drop(extra)
        later = [request(10, "a"), request(11, "b")]
        for queue in (patient, impatient):
            for each in later:
                queue.push(each)
            queue.at(1.0)
        assert [r.row for r in impatient] == [r.row for r in patient], order
        assert taken(impatient, 6) == taken(patient, 6), order
