"""Waiting queues: an order, and constant or logarithmic work at every end of it.

fcfs      in order of arrival
priority  smaller priority first
sjf       shortest predicted output first, with aging
edf       earliest deadline first
fair      weighted fair queueing by class, with a boost for who has waited long
vtc       the class that was served least first: virtual token counters
lpm       longest cached prefix first
mlfq      fewest tokens served first, by levels: skip-join multi-level feedback queue

Keys of requests are taken from a `RequestView`, which has no true output length: no order can depend on it.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from simulator.errors import InputError
from simulator.queues.edf import edf
from simulator.queues.fair import Fair
from simulator.queues.fcfs import Fcfs
from simulator.queues.lpm import Lpm
from simulator.queues.mlfq import Mlfq
from simulator.queues.order import Order
from simulator.queues.priority import priority
from simulator.queues.protocol import WaitingQueue
from simulator.queues.sjf import sjf
from simulator.queues.vtc import Vtc

__all__ = ["QUEUES", "Order", "WaitingQueue", "make_queue", "order_parameters"]

QUEUES: dict[str, Callable[..., WaitingQueue]] = {
    "fcfs": Fcfs,
    "priority": priority,
    "sjf": sjf,
    "edf": edf,
    "fair": Fair,
    "vtc": Vtc,
    "lpm": Lpm,
    "mlfq": Mlfq,
}
"""The orders by name, each with what makes an empty queue of it from its parameters."""

_NO_PARAMETERS = ("fcfs", "priority")  # fcfs is a dictionary, and its signature that of one


def order_parameters(order: str) -> Mapping[str, Any]:
    """The parameters of an order and their defaults. Raises InputError for an order that there is not."""
    maker = _maker(order)
    if order in _NO_PARAMETERS:
        return {}
    return {name: parameter.default for name, parameter in inspect.signature(maker).parameters.items()}


def make_queue(order: str, **parameters: Any) -> WaitingQueue:
    """An empty queue of the order named, which may be an `Order` that brings its parameters along.

    Raises InputError for an unknown order, a parameter that it does not have, and a value that it cannot take.
    """
    maker = _maker(order)
    if isinstance(order, Order):
        parameters = {**order.parameters, **parameters}
    known = order_parameters(order)
    for name in parameters:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            takes = f"it takes: {', '.join(known)}" if known else "it takes none"
            hint = f"did you mean {near[0]}? {takes}" if near else takes
            raise InputError(f"the order {order} has no parameter {name!r}", hint=hint)
    try:
        return maker(**parameters)
    except ValueError as error:
        raise InputError(f"the order {order} refuses its parameters: {error}") from None


def _maker(order: str) -> Callable[..., WaitingQueue]:
    if order not in QUEUES:
        raise InputError(f"unknown queue order {str(order)!r}", hint=f"known orders: {', '.join(QUEUES)}")
    return QUEUES[order]
