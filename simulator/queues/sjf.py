"""Shortest job first, by predicted output."""

from collections.abc import Iterator
from itertools import chain
from typing import Annotated

from annotated_types import doc
from sortedcontainers import SortedDict

from simulator.parameters import Seconds
from simulator.queues.order import OrderKind, WaitingQueue
from simulator.queues.sorted_queues import ByKey
from simulator.request import RequestView
from simulator.request_state import RequestState

Aging = Annotated[Seconds | None, doc("waiting time after which a request goes before all shorter ones")]


def sjf(aging_s: Aging = None) -> WaitingQueue:
    """The shortest expected output first, then arrival.

    With `aging_s`, requests that arrived longer ago than that go before all others, by arrival: none is passed over
    for ever. A preempted request returns to its place, and has aged since its arrival too.
    """
    return ByKey(_key) if aging_s is None else SjfWithAging(aging_s)


def expected_output(request: RequestView) -> int:
    """Predicted output tokens where there is a prediction, else `max_tokens`."""
    predicted = request.predicted_output_tokens
    return request.max_tokens if predicted is None else predicted


def _key(request: RequestView) -> tuple[int, int]:
    return expected_output(request), request.row


class SjfWithAging:
    """See `sjf`. Rows of a workload are in order of arrival."""

    __slots__ = ("_aged", "_aging_s", "_by_length", "_now_s", "_young")

    timeless = False
    meter = None

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s
        self._now_s = 0.0
        self._by_length = ByKey(_key)
        self._young: SortedDict[int, RequestState] = SortedDict()  # the same ones, by row
        self._aged: SortedDict[int, RequestState] = SortedDict()

    def __len__(self) -> int:
        return len(self._aged) + len(self._young)

    def __iter__(self) -> Iterator[RequestState]:
        return chain(self._aged.values(), self._by_length)

    @property
    def head(self) -> RequestState:
        return self._aged.peekitem(0)[1] if self._aged else self._by_length.head

    def at(self, now_s: float) -> None:
        self._now_s = now_s
        young = self._young
        while young and self._is_old(young.peekitem(0)[1]):
            row, request = young.popitem(0)
            self._by_length.remove(request)
            self._aged[row] = request

    def push(self, request: RequestState) -> None:
        if self._is_old(request):
            self._aged[request.row] = request
        else:
            self._young[request.row] = request
            self._by_length.push(request)

    put_back = push

    def remove(self, request: RequestState) -> None:
        if self._aged.pop(request.row, None) is None:
            del self._young[request.row]
            self._by_length.remove(request)

    drop = remove

    def _is_old(self, request: RequestState) -> bool:
        return self._now_s - request.arrival_s > self._aging_s


ORDER = OrderKind(sjf)
