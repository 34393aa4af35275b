"""Waiting queues, an order a file: constant or logarithmic work at every end of each.

A module of this folder with a constant `ORDER` is an order of the module's name, with hyphens for underscores; nothing
registers it. Keys come from a `RequestView`, which has no true output length: no order can depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import doc

from simulator.errors import InputError, did_you_mean
from simulator.parameters import Parameter, check_arguments, constants_in
from simulator.queues.order import Order, OrderKind, WaitingQueue

# Modules that setup.py compiles where that is asked for.
COMPILED = ("decoding_order",)

__all__ = ["QUEUES", "Order", "OrderName", "WaitingQueue", "make_queue", "order_parameters"]


QUEUES: dict[str, OrderKind] = {name.replace("_", "-"): kind for name, kind in constants_in(__name__, "ORDER").items()}
"""The orders by name, sorted."""

if TYPE_CHECKING:
    OrderName = str
else:
    OrderName = Annotated[
        Literal[tuple(name for name, kind in QUEUES.items() if not kind.is_internal)],
        doc("order of the waiting queue"),
    ]
"""The type of a policy's parameter `order`: a name of those that can be chosen, or an `Order` with parameters."""


def order_parameters(order: str) -> Mapping[str, Parameter]:
    """The parameters of an order by name. Raises InputError for an unknown order."""
    return _kind(order).parameters


def make_queue(order: str, **parameters: Any) -> WaitingQueue:
    """An empty queue of the order named, which may be an `Order` that brings its parameters along.

    Raises InputError for an unknown order, a parameter that it does not have, and a value that it cannot take.
    """
    kind = _kind(order)
    if isinstance(order, Order):
        parameters = {**order.parameters, **parameters}
    known = kind.parameters
    for name in parameters:
        if name not in known:
            takes = f"it takes: {', '.join(known)}" if known else "it takes none"
            raise InputError(f"the order {order} has no parameter {name!r}", hint=did_you_mean(name, known) + takes)
    try:
        check_arguments(kind.make, parameters)
        return kind.make(**parameters)
    except ValueError as error:
        raise InputError(f"the order {order} refuses its parameters: {error}") from None


def _kind(order: str) -> OrderKind:
    if order not in QUEUES:
        raise InputError(f"unknown queue order {str(order)!r}", hint=f"known orders: {', '.join(QUEUES)}")
    return QUEUES[order]
