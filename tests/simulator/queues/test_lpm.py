"""Longest prefix match, as a queue: what it compares, when, and what it does without a cache."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.queues import Order, make_queue, order_parameters
from simulator.queues.lpm import MOST_COMPARED, Lpm
from simulator.queues.sorted_queues import Prefixes
from simulator.request import Request
from simulator.request_state import DecodeClock, RequestState
from tests.examples import examples
from tests.laws.caching import caching_scenarios, run_cached
from tests.laws.scenarios import Scenario


class Found:
    """A cache that finds so much of each request, and counts how often it is asked."""

    def __init__(self, **found: int) -> None:
        self.found = {int(name[1:]): hits for name, hits in found.items()}
        self.begins: dict[int, bytes] = {}
        self.asked = 0

    def hit_tokens(self, request: RequestState) -> int:
        self.asked += 1
        return self.found.get(request.row, 0)

    def leading(self, request: RequestState, num_tokens: int) -> bytes | None:
        return self.begins.get(request.row)

    def by_subtree(self, waiting: Sequence[RequestState]) -> list[RequestState]:
        raise NotImplementedError


def requests(count: int) -> list[RequestState]:
    return [RequestState(Request(row, f"r{row}", 0.0, 9, 1, 1), DecodeClock(4)) for row in range(count)]


def queue_of(waiting: list[RequestState], cache: Found | None) -> Lpm:
    queue = make_queue("lpm")
    assert isinstance(queue, Lpm)
    if cache is not None:
        queue.prefixes = Prefixes(cache.hit_tokens, cache.leading, cache.by_subtree)
    for request in waiting:
        queue.push(request)
    return queue


def rows(queue: Lpm) -> list[int]:
    assert len(queue) == len(list(queue))
    return [request.row for request in queue]


def test_the_longest_prefix_comes_first_then_who_has_waited_longest() -> None:
    queue = queue_of(requests(5), Found(r1=3, r3=7, r4=3))
    assert rows(queue) == [3, 1, 4, 0, 2]
    assert queue.head.row == 3


def test_of_those_that_begin_alike_and_find_little_only_the_first_is_served_now() -> None:
    """The others would find what it leaves; one that finds more than 32 tokens does not ask."""
    cache = Found(r1=32, r3=33)
    cache.begins = dict.fromkeys((0, 1, 3, 4), b"same") | {2: b"other"}
    waiting = [RequestState(Request(row, f"r{row}", 0.0, 99, 1, 1), DecodeClock(4)) for row in range(5)]
    assert rows(queue_of(waiting, cache)) == [3, 0, 2, 1, 4]


def test_a_sorting_that_is_kept_is_where_the_next_begins() -> None:
    """And one that is not kept leaves no trace."""
    waiting = requests(4)
    cache = Found(r2=5)
    queue = queue_of(waiting, cache)
    queue.at(0.0)
    assert rows(queue) == [2, 0, 1, 3]
    queue.settle(keep=False)
    assert rows(queue) == [0, 1, 2, 3]
    queue.at(0.0)
    queue.settle(keep=True)
    assert [live.row for live in queue.before] == [0, 1, 2, 3]
    cache.found = {3: 1}
    assert rows(queue) == [2, 0, 1, 3], "until the next plan"
    queue.at(0.0)
    assert rows(queue) == [3, 2, 0, 1]


def test_who_is_preempted_waits_anew() -> None:
    waiting = requests(4)
    queue = queue_of(waiting, Found(r3=1))
    queue.remove(waiting[0])
    queue.put_back(waiting[0])
    assert rows(queue) == [3, 1, 2, 0]


def test_without_a_cache_nothing_is_found() -> None:
    assert rows(queue_of(requests(4), None)) == [0, 1, 2, 3]


def test_prefixes_are_compared_once_a_plan() -> None:
    """Not again for the second part of a step's plan, but for the next step's, and when a request comes."""
    waiting = requests(4)
    cache = Found(r2=5)
    queue = queue_of(waiting, cache)
    queue.at(1.0)
    assert [*rows(queue), cache.asked] == [2, 0, 1, 3, 4]
    cache.found = {1: 9}
    queue.settle(keep=True)
    queue.remove(waiting[2])
    assert [*rows(queue), cache.asked] == [0, 1, 3, 4]
    queue.at(2.0)
    assert [*rows(queue), cache.asked] == [1, 0, 3, 7]
    queue.put_back(waiting[2])
    assert [*rows(queue), cache.asked] == [1, 0, 3, 2, 11]


def test_above_128_nobody_is_compared() -> None:
    waiting = requests(MOST_COMPARED + 1)
    cache = Found(**{f"r{MOST_COMPARED}": 5})
    queue = queue_of(waiting, cache)
    queue.at(1.0)
    assert rows(queue) == list(range(MOST_COMPARED + 1))
    assert cache.asked == 0
    queue.remove(waiting[0])
    assert queue.head.row == 1, "in the same step the order stays"
    queue.at(2.0)
    assert queue.head.row == MOST_COMPARED


def test_it_takes_no_parameters() -> None:
    from simulator.errors import InputError

    assert order_parameters("lpm") == {}
    with pytest.raises(InputError, match="the order lpm has no parameter 'aging_s'"):
        make_queue(Order("lpm", aging_s=1.0))


@given(scenario=caching_scenarios())
@examples(100)
def test_vllms_scheduler_takes_it_too(scenario: Scenario) -> None:
    from dataclasses import replace

    policy: Any = scenario.policy
    lpm = replace(scenario, policy=replace(policy, order="lpm"))
    fast, stepwise = run_cached(lpm), run_cached(lpm, fast_forward=False)
    assert differences(fast.records, stepwise.records) == []
    assert fast.decisions == stepwise.decisions


@given(steps=st.lists(st.tuples(st.sampled_from(["push", "remove", "at", "look"]), st.integers(0, 9)), max_size=40))
def test_it_is_a_sorted_list(steps: list[tuple[str, int]]) -> None:
    """Whatever is done: everybody is in it once, and after a step has begun in order."""
    all_requests = requests(10)
    cache = Found(r1=2, r2=5, r3=2, r7=9)
    queue = queue_of([], cache)
    waiting: list[int] = []
    for time, (what, row) in enumerate(steps):
        if what == "push" and row not in waiting:
            queue.push(all_requests[row])
            waiting.append(row)
        elif what == "remove" and row in waiting:
            queue.remove(all_requests[row])
            waiting.remove(row)
        elif what == "at":
            queue.at(float(time))
        else:
            assert rows(queue) == sorted(waiting, key=lambda row: -cache.found.get(row, 0))
    assert rows(queue) == sorted(waiting, key=lambda row: -cache.found.get(row, 0))
