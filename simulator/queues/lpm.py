"""Longest prefix match."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from simulator.queues.order import OrderKind
from simulator.request_state import RequestState

MOST_COMPARED = 128


class Lpm:
    """The request with the longest cached prefix first, then the one that has waited longest.

    A preempted request waits anew. While more than 128 requests wait the order is fcfs: comparing them all would take
    too long. Prefixes are compared once a step, before the first admission. This is `SchedulePolicy` in
    python/sglang/srt/managers/schedule_policy.py (SGLang 0.5) but for two things: a request that finds little in the
    cache, and would find much if one before it in the queue were served first, is not put last here; and ties are in
    order of waiting, not as the last sorting left them.

    `count_hits` says how many leading blocks of a request are cached; a replica with a cache sets it.
    """

    __slots__ = ("_is_told", "_now_s", "_sorted", "_waiting", "count_hits")

    timeless = False
    meter = None

    def __init__(self) -> None:
        self.count_hits: Callable[[RequestState], int] = _none_cached
        self._waiting: OrderedDict[RequestState, None] = OrderedDict()
        self._now_s = 0.0
        self._is_told = False  # what the order is now: that of `_sorted`, or of waiting where that is None
        self._sorted: list[RequestState] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[RequestState]:
        if not self._is_told:
            self._is_told = True
            if len(self._waiting) <= MOST_COMPARED:
                self._sorted = sorted(self._waiting, key=self.count_hits, reverse=True)
        return iter(self._waiting if self._sorted is None else self._sorted)

    @property
    def head(self) -> RequestState:
        return next(iter(self))

    def at(self, now_s: float) -> None:
        if now_s != self._now_s:
            self._now_s = now_s
            self._forget()

    def push(self, request: RequestState) -> None:
        self._waiting[request] = None
        self._forget()

    put_back = push

    def remove(self, request: RequestState) -> None:
        del self._waiting[request]
        if self._sorted is not None:
            self._sorted.remove(request)

    drop = remove

    def _forget(self) -> None:
        self._is_told = False
        self._sorted = None


def _none_cached(request: RequestState) -> int:
    return 0


ORDER = OrderKind(Lpm, needs_prefix_cache=True)
