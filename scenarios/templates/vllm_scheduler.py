"""The order `weighted` as a scheduler of vLLM 0.33, in a file that vLLM imports:

    PYTHONPATH=. vllm serve MODEL --scheduler-cls vllm_scheduler.WeightedScheduler

It changes the order of the waiting requests and nothing else. `WEIGHTS` are the parameters of batchlab's order
`weighted`. vLLM knows no prediction of an answer's length: `max_tokens` stands for it. Use `SyncWeightedScheduler` with
`--no-async-scheduling`.
"""

import time
from bisect import bisect_left, insort
from itertools import chain, count

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler

WEIGHTS = {
    "input_token_s": 0.001,
    "output_token_s": 0.0,
    "priority_s": 0.0,
    "late_after_s": 1.0,
    "late_token_s": 0.0,
    "cached_token_s": 0.0,
}
LOOKED_UP = 64  # requests at the front of the queue that are looked up in the prefix cache


class WeightedQueue(RequestQueue):
    """The smallest sum first, and requests that are late behind all others; see batchlab's order `weighted`."""

    def __init__(self, weights=WEIGHTS, cached_tokens=lambda request: 0):
        self._weights, self._cached_tokens = weights, cached_tokens
        self._first = None  # keys of the first in time, sorted with what is cached; None until they are looked at
        self._in_time, self._late, self._due = [], [], []  # sorted: keys, keys, times at which requests become late
        self._places, self._numbers, self._now_s = {}, count(), 0.0

    def at(self, now_s):
        """Move the requests that are late by now; told before each step."""
        self._now_s, self._first = now_s, None
        while self._due and self._due[0][0] < now_s:
            _, number, request = self._due.pop(0)
            key = (self._later_s(request), number, request)
            del self._in_time[bisect_left(self._in_time, key[:2], key=_first_two)]
            insort(self._late, key, key=_first_two)

    def add_request(self, request):
        number = self._places.setdefault(request.request_id, next(self._numbers))
        key = (self._later_s(request), number, request)
        self._first, due_s = None, self._due_s(request)
        is_new = not request.num_preemptions and due_s is not None
        if is_new and due_s < self._now_s:
            insort(self._late, key, key=_first_two)
            return
        insort(self._in_time, key, key=_first_two)
        if is_new:
            insort(self._due, (due_s, number, request), key=_first_two)

    def prepend_request(self, request):
        self.add_request(request)  # it returns to its place

    def prepend_requests(self, requests):
        for request in requests:
            self.add_request(request)

    def peek_request(self):
        return next(iter(self))

    def pop_request(self):
        request = self.peek_request()
        self.remove_request(request)
        return request

    def remove_request(self, request):
        for entries in (self._in_time, self._late, self._due, self._first or []):
            entries[:] = [entry for entry in entries if entry[2] is not request]

    def remove_requests(self, requests):
        for request in list(requests):
            self.remove_request(request)

    def _later_s(self, request):
        weights = self._weights
        later_s = weights["input_token_s"] * request.num_prompt_tokens + weights["output_token_s"] * request.max_tokens
        return request.arrival_time + (later_s + weights["priority_s"] * request.priority)

    def _due_s(self, request):
        after_s = self._weights["late_after_s"]
        if after_s is None:
            return None
        return request.arrival_time + after_s - self._weights["late_token_s"] * request.num_prompt_tokens

    def __bool__(self):
        return bool(self._in_time or self._late)

    def __len__(self):
        return len(self._in_time) + len(self._late)

    def __iter__(self):
        if not self._weights["cached_token_s"]:
            return (entry[2] for entry in chain(self._in_time, self._late))
        if self._first is None:
            self._first = sorted(self._in_time[:LOOKED_UP], key=self._with_hits)
        return (entry[2] for entry in chain(self._first, self._in_time[len(self._first) :], self._late))

    def _with_hits(self, entry):
        later_s, number, request = entry
        return later_s - self._weights["cached_token_s"] * self._cached_tokens(request), number


def _first_two(entry):
    return entry[:2]


class _Weighted:
    clock = staticmethod(time.time)  # the clock of `Request.arrival_time`

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.waiting = WeightedQueue(cached_tokens=self._cached_tokens)

    def schedule(self, *args, **kwargs):
        self.waiting.at(self.clock())
        return super().schedule(*args, **kwargs)

    def _cached_tokens(self, request):
        return self.kv_cache_manager.get_computed_blocks(request)[1]


class WeightedScheduler(_Weighted, AsyncScheduler):
    """vLLM's asynchronous scheduler with this order."""


class SyncWeightedScheduler(_Weighted, Scheduler):
    """vLLM's synchronous scheduler with this order."""
