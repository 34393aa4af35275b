"""The queue order of a scenario, put together from its name, its parameters' keys and the SLO."""

from __future__ import annotations

from collections.abc import Mapping

from scenarios.schema.engine import ORDER_KEYS
from scenarios.schema.scenario import Scenario
from scenarios.schema.slo import SloConfig
from simulator.errors import InputError
from simulator.queues import QUEUES, Order, make_queue, order_parameters


def order_keys(order: object) -> tuple[str, ...]:
    """The keys of the engine that are parameters of this order; none for an order of somebody else's."""
    if order not in QUEUES:
        return ()
    known = order_parameters(str(order))
    return tuple(key for key in ORDER_KEYS if key in known)


def who_takes(key: str) -> str:
    """The orders that have this parameter, as a hint."""
    return f"orders that take it: {', '.join(order for order in QUEUES if key in order_keys(order))}"


def build_order(scenario: Scenario, order: str, given: Mapping[str, object]) -> str:
    """What a policy gets as its order: the name, with those of the keys given that are the order's parameters.

    A deadline is the request's own, or else the SLO's. Raises InputError where the parameters make no order, and for
    `lpm` without a prefix cache.
    """
    if order not in QUEUES:
        return order  # a user's policy may have orders of its own
    if order == "lpm" and not scenario.engine.enable_prefix_caching:
        what = "`lpm` orders by what a prefix cache holds, and enable_prefix_caching is false"
        raise scenario.error("engine.order", what, "give enable_prefix_caching: true; without it SGLang serves fcfs")
    parameters = {key: given[key] for key in order_keys(order) if key in given}
    if order == "edf" and scenario.slo is not None:
        parameters["deadline_s"] = _deadline_s(scenario.slo)
    if not parameters:
        return order
    found = Order(order, **parameters)
    try:
        make_queue(found)
    except InputError as error:
        raise scenario.error("engine.order", error.message, error.hint) from None
    return found


def _deadline_s(slo: SloConfig) -> float | None:
    """When a request should be done, or where only that is limited, begin to answer."""
    limit_ms = slo.ttft_ms if slo.e2el_ms is None else slo.e2el_ms
    return None if limit_ms is None else limit_ms / 1000.0
