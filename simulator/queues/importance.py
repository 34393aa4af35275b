"""By priority, with an account of what decodes."""

from __future__ import annotations

from simulator.queues.by_key import ByKey
from simulator.queues.decoding_order import DecodingByRank
from simulator.queues.order import OrderKind
from simulator.queues.priority import by_priority
from simulator.request_state import RequestState


class Importance(ByKey):
    """The queue of `priority`; its `meter` has the decoding requests in the same order."""

    __slots__ = ("meter",)

    def __init__(self) -> None:
        super().__init__(by_priority)
        self.meter = DecodingByRank(_priority)


def _priority(request: RequestState) -> int:
    return request.priority


ORDER = OrderKind(Importance, is_internal=True)  # `preemptive` preempts by it
