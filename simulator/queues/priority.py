"""By priority."""

from collections.abc import Callable
from operator import attrgetter

from simulator.queues.order import OrderKind
from simulator.queues.sorted_queues import ByKey
from simulator.request import RequestView

rank: Callable[[RequestView], tuple[int, int]] = attrgetter("priority", "row")
"""Priority, then arrival: the smaller is the more important, and the larger is preempted first."""


def priority() -> ByKey:
    """Smaller priority first, then arrival."""
    return ByKey(rank)


ORDER = OrderKind(priority)
