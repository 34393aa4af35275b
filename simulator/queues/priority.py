"""By priority."""

from __future__ import annotations

from simulator.queues.by_key import ByKey
from simulator.queues.order import OrderKind
from simulator.request import RequestView


def priority() -> ByKey:
    """Smaller priority first, then arrival."""
    return ByKey(by_priority)


def by_priority(request: RequestView) -> tuple[int, int]:
    """The key of this order."""
    return request.priority, request.row


ORDER = OrderKind(priority)
