"""By priority, with an account of what decodes."""

from operator import attrgetter

from simulator.queues.decoding_order import DecodingByRank
from simulator.queues.order import OrderKind
from simulator.queues.priority import rank
from simulator.queues.sorted_queues import ByKey


class Importance(ByKey):
    """The queue of `priority`; its `meter` has the decoding requests in the same order."""

    __slots__ = ("meter",)

    def __init__(self) -> None:
        super().__init__(rank)
        self.meter = DecodingByRank(attrgetter("priority"))


ORDER = OrderKind(Importance, is_internal=True)  # `preemptive` preempts by it
