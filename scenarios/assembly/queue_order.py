"""The queue order of a scenario, put together from its name, the parameters given and the SLO."""

from __future__ import annotations

from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.plan import PolicyFeatures
from simulator.policies import policy_class
from simulator.queues import QUEUES, Order, make_queue


def build_order(scenario: Scenario, order: str) -> str:
    """Return the queue order for a policy: its name, with the given keys that are its parameters.

    The default deadline is the SLO's for the last token, else for the first. Raises InputError for parameters that make
    no order, and for an order that needs a prefix cache where there is none.
    """
    kind = QUEUES.get(order)
    if kind is None:
        return order  # a user's policy may have orders of its own
    if kind.needs_prefix_cache and not scenario.engine.enable_prefix_caching:
        what = f"`{order}` orders by what a prefix cache holds, and enable_prefix_caching is false"
        raise scenario.error("engine.order", what, "give enable_prefix_caching: true; without it SGLang serves fcfs")
    if kind.needs_radix_tree and not PolicyFeatures.of(policy_class(scenario.engine.policy)).has_radix_tree:
        what = f"`{order}` walks SGLang's radix tree, which {scenario.engine.policy} does not have"
        raise scenario.error("engine.order", what, "give policy: sglang")
    given = scenario.engine.given()
    parameters = {key: given[key] for key in kind.parameters if key in given}
    if "deadline_s" in kind.parameters and scenario.slo is not None:
        limit_ms = scenario.slo.ttft_ms if scenario.slo.e2el_ms is None else scenario.slo.e2el_ms
        parameters.setdefault("deadline_s", None if limit_ms is None else limit_ms / 1000.0)
    if not parameters:
        return order
    found = Order(order, **parameters)
    try:
        make_queue(found)
    except InputError as error:
        raise scenario.error("engine.order", error.message, error.hint) from None
    return found
