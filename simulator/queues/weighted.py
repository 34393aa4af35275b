"""A weighted sum of what a policy may see of a request, and last those that can no longer have their token in time."""

from collections.abc import Iterator
from itertools import chain, islice
from math import inf
from typing import Annotated

from annotated_types import Ge, Le, doc
from sortedcontainers import SortedDict

from simulator.parameters import Factor, Seconds
from simulator.queues.order import OrderKind, WaitingQueue
from simulator.queues.sjf import expected_output
from simulator.queues.sorted_queues import ByKey, Key, Prefixes
from simulator.request import RequestView
from simulator.request_state import RequestState

InputTokenS = Annotated[Seconds, doc("seconds that a request counts as later for each token of its prompt")]
OutputTokenS = Annotated[Seconds, doc("seconds that a request counts as later for each expected output token")]
ClassS = Annotated[
    dict[str, Annotated[float, Ge(0), Le(1e9)]] | None,
    doc("seconds that a request of a class counts as later, by its name; 0: not named"),
]
CachedTokenS = Annotated[
    Seconds, doc("seconds that a request counts as earlier for each token of it that the prefix cache holds")
]
PriorityS = Annotated[Seconds, doc("seconds that a request counts as later for each step of its priority")]
DeadlineWeight = Annotated[Factor, doc("share of its own `deadline_s` by which a request counts as later")]
LateAfterS = Annotated[
    Seconds | None,
    doc("a request with no first token so late goes last; null: none; default: the SLO's TTFT"),
]
LateTokenS = Annotated[Seconds, doc("seconds for each token of its prompt by which a request is late earlier")]

LOOKED_UP = 64
"""Requests at the front of the queue that are looked up in the prefix cache."""


def weighted(
    input_token_s: InputTokenS = 0.0,
    output_token_s: OutputTokenS = 0.0,
    priority_s: PriorityS = 0.0,
    deadline_weight: DeadlineWeight = 0.0,
    class_s: ClassS = None,
    cached_token_s: CachedTokenS = 0.0,
    late_after_s: LateAfterS = None,
    late_token_s: LateTokenS = 0.0,
) -> WaitingQueue:
    """The smallest sum first: the arrival, and what the weights add to it; then the earlier row.

    As every request ages alike, the sum does not change while requests wait. Weights of 0 are `fcfs`; a large
    `input_token_s` is the shortest prompt first, a small one lets long prompts pass after a while. A request without a
    prediction counts with its `max_tokens`, one without a deadline with none. `cached_token_s` alone follows what the
    prefix cache holds now: of the first 64 requests in time, for to look up more takes a server too long.

    With `late_after_s`, requests that cannot have their first token so soon after their arrival wait behind all
    others: no work is spent on them while others can still be served in time. `late_token_s` allows for the time that
    the prompt takes. A request that was preempted is never late: work was spent on it.
    """

    def key(request: RequestView) -> tuple[float, int]:
        deadline_s = request.deadline_s or 0.0
        later_s = input_token_s * request.input_tokens + output_token_s * expected_output(request)
        later_s += priority_s * request.priority + deadline_weight * deadline_s
        if class_s:
            later_s += class_s.get(request.class_name, 0.0)
        return request.arrival_s + later_s, request.row

    if cached_token_s:
        return CachedFirst(key, inf if late_after_s is None else late_after_s, late_token_s, cached_token_s)
    return ByKey(key) if late_after_s is None else LateLast(key, late_after_s, late_token_s)


class LateLast:
    """See `weighted`: two queues of one key, and the times at which requests move from the first to the second."""

    __slots__ = ("_due", "_in_time", "_late", "_late_after_s", "_late_rows", "_late_token_s", "_now_s")

    timeless = False
    meter = None

    def __init__(self, key: Key, late_after_s: float, late_token_s: float) -> None:
        self._late_after_s = late_after_s
        self._late_token_s = late_token_s
        self._now_s = 0.0
        self._in_time = ByKey(key)
        self._late = ByKey(key)
        self._late_rows: set[int] = set()
        self._due: SortedDict[tuple[float, int], RequestState] = SortedDict()  # of those in time that may be late

    def __len__(self) -> int:
        return len(self._in_time) + len(self._late)

    def __iter__(self) -> Iterator[RequestState]:
        return chain(self._in_time, self._late)

    @property
    def head(self) -> RequestState:
        return self._in_time.head if len(self._in_time) else self._late.head

    def at(self, now_s: float) -> None:
        self._now_s = now_s
        due = self._due
        while due and due.peekitem(0)[0][0] < now_s:
            request = due.popitem(0)[1]
            self._in_time.remove(request)
            self._put_last(request)

    def push(self, request: RequestState) -> None:
        due_s = self._due_s(request)
        if not request.num_preemptions and due_s < self._now_s:
            self._put_last(request)
            return
        self._in_time.push(request)
        if not request.num_preemptions:
            self._due[due_s, request.row] = request

    put_back = push

    def remove(self, request: RequestState) -> None:
        if request.row in self._late_rows:
            self._late_rows.remove(request.row)
            self._late.remove(request)
        else:
            self._in_time.remove(request)
            self._due.pop((self._due_s(request), request.row), None)

    drop = remove

    def _put_last(self, request: RequestState) -> None:
        self._late.push(request)
        self._late_rows.add(request.row)

    def _due_s(self, request: RequestState) -> float:
        """The last moment at which its prompt may begin."""
        return request.arrival_s + self._late_after_s - self._late_token_s * request.input_tokens


class CachedFirst(LateLast):
    """See `weighted`: `LateLast`, of which the first requests in time are sorted with what the prefix cache holds.

    They are sorted when the queue is first looked at after `at`. A replica with a prefix cache sets `prefixes`.
    """

    __slots__ = ("_cached_token_s", "_first", "_key", "prefixes")

    def __init__(self, key: Key, late_after_s: float, late_token_s: float, cached_token_s: float) -> None:
        super().__init__(key, late_after_s, late_token_s)
        self.prefixes: Prefixes | None = None
        self._cached_token_s = cached_token_s
        self._key = key
        self._first: list[RequestState] | None = None

    def __iter__(self) -> Iterator[RequestState]:
        if self._first is None:
            self._first = sorted(islice(self._in_time, LOOKED_UP), key=self._with_hits)
        return chain(self._first, islice(super().__iter__(), len(self._first), None))

    @property
    def head(self) -> RequestState:
        return next(iter(self))

    def at(self, now_s: float) -> None:
        super().at(now_s)
        self._first = None

    def push(self, request: RequestState) -> None:
        super().push(request)
        self._first = None

    put_back = push

    def remove(self, request: RequestState) -> None:
        super().remove(request)
        if self._first is not None and request in self._first:
            self._first.remove(request)

    drop = remove

    def _with_hits(self, request: RequestState) -> tuple[float, int]:
        hits = 0 if self.prefixes is None else self.prefixes.hit_tokens(request)
        return self._key(request)[0] - self._cached_token_s * hits, request.row


ORDER = OrderKind(weighted, cache_parameter="cached_token_s")
