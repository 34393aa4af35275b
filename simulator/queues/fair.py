"""Weighted fair queueing by class."""

from collections.abc import Iterator
from typing import Annotated

from annotated_types import doc

from simulator.parameters import PositiveSeconds
from simulator.queues.order import OrderKind
from simulator.queues.sjf import expected_output
from simulator.queues.sorted_queues import Classes, ClassWeights, OutputPrice, PromptPrice, check_prices
from simulator.request import RequestView
from simulator.request_state import RequestState

MOST_BOOST = 0.3
MaxWait = Annotated[
    PositiveSeconds | None,
    doc("a wait w shortens the virtual length by w / max_wait_s of it, at most 0.3; null: never"),
]


class Fair:
    """The earliest virtual finish time first; within a class that is the order of arrival.

    A request's virtual length is its expected service, `w_p` a prompt token and `w_q` an expected output token,
    divided by its class's weight (1 where `class_weights` does not name it). It begins where its class's last request
    ends, or now if that is later; now is the largest finish time of those admitted (self-clocked fair queueing:
    Golestani, INFOCOM 1994). So a class gets its share of the service while it has a waiting request, and neither
    owes nor is owed anything for the time without.

    The virtual length of a request shrinks by waiting time / `max_wait_s`, at most by 30 %; with `max_wait_s` None it
    does not. A preempted request has been paid for: it returns at the present virtual time.
    """

    __slots__ = ("_classes", "_finish", "_max_wait_s", "_now_s", "_tags", "_virtual_now", "_w_p", "_w_q", "_weights")

    meter = None

    def __init__(
        self,
        class_weights: ClassWeights = None,
        max_wait_s: MaxWait = 60.0,
        w_p: PromptPrice = 1.0,
        w_q: OutputPrice = 2.0,
    ) -> None:
        check_prices(w_p, w_q)
        self._weights = dict(class_weights or {})
        self._max_wait_s = max_wait_s
        self._w_p = w_p
        self._w_q = w_q
        self._classes = Classes()
        self._tags: dict[int, tuple[float, float]] = {}  # virtual start and length, by row
        self._finish: dict[str, float] = {}  # of a class's last request
        self._virtual_now = 0.0
        self._now_s = 0.0

    @property
    def timeless(self) -> bool:
        return self._max_wait_s is None

    def __len__(self) -> int:
        return len(self._classes)

    def __iter__(self) -> Iterator[RequestState]:
        return self._classes.in_order(self._rank)

    @property
    def head(self) -> RequestState:
        return self._classes.first(self._rank)

    def at(self, now_s: float) -> None:
        self._now_s = now_s

    def push(self, request: RequestState) -> None:
        name = request.class_name
        start = max(self._virtual_now, self._finish.get(name, 0.0))
        length = self._length(request)
        self._finish[name] = start + length
        self._tags[request.row] = start, length
        self._classes.add(request)

    def put_back(self, request: RequestState) -> None:
        self._tags[request.row] = self._virtual_now, 0.0
        self._classes.add(request)

    def remove(self, request: RequestState) -> None:
        self._virtual_now = max(self._virtual_now, self._rank(request))
        del self._tags[request.row]
        self._classes.remove(request)

    def drop(self, request: RequestState) -> None:
        start, length = self._tags.pop(request.row)
        self._classes.remove(request)
        if length and self._finish[request.class_name] == start + length:  # the last of its class: nothing is owed
            self._finish[request.class_name] = start

    def _length(self, request: RequestView) -> float:
        service = self._w_p * request.input_tokens + self._w_q * expected_output(request)
        return service / self._weights.get(request.class_name, 1.0)

    def _rank(self, request: RequestView) -> float:
        """Virtual finish time, brought forward by the boost."""
        start, length = self._tags[request.row]
        if self._max_wait_s is not None:
            length *= 1.0 - min(MOST_BOOST, (self._now_s - request.arrival_s) / self._max_wait_s)
        return start + length


ORDER = OrderKind(Fair)
