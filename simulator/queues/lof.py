"""Longest output first."""

from collections import OrderedDict
from collections.abc import Iterator
from heapq import merge
from itertools import chain

from sortedcontainers import SortedDict

from simulator.queues.order import OrderKind
from simulator.queues.sorted_queues import Ranked
from simulator.request_state import RequestState


class Lof(Ranked):
    """The largest `max_tokens` first; of equals, the order stays as it was.

    `_sort_by_longest_output` in python/sglang/srt/managers/schedule_policy.py:493 (SGLang 0.5.23); later ones sort in.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[RequestState, tuple[int, int]] = {}  # -max_tokens, and the turn in which it came
        self._sorted: SortedDict[tuple[int, int], RequestState] = SortedDict()
        self._late: OrderedDict[RequestState, None] = OrderedDict()  # since the last sorting that was kept
        self._turn = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[RequestState]:
        if not self._is_due or not self._late:
            return chain(self._sorted.values(), self._late)
        key = self._keys.__getitem__
        return merge(self._sorted.values(), sorted(self._late, key=key), key=key)

    def at(self, now_s: float) -> None:
        self._is_due = True

    def settle(self, *, keep: bool) -> None:
        if keep:
            for request in self._late:
                self._sorted[self._keys[request]] = request
            self._late.clear()
        self._is_due = False

    def push(self, request: RequestState) -> None:
        self._turn += 1
        self._keys[request] = -request.max_tokens, self._turn
        self._late[request] = None

    def remove(self, request: RequestState) -> None:
        key = self._keys.pop(request)
        if request in self._late:
            del self._late[request]
        else:
            del self._sorted[key]


ORDER = OrderKind(Lof)
