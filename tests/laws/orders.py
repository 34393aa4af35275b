"""Queue orders for the laws: each with random parameters, and requests that have what orders look at."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulator.queues import QUEUES, Order, order_parameters
from simulator.queues.order import OrderKind
from simulator.queues.sorted_queues import Ranked
from simulator.workload import Workload
from tests.laws.scenarios import OVERLAPPING, POLICIES, Scenario, scenarios, takes, values

# Policies that take an order.
ORDERED = tuple(name for name in POLICIES if takes(name, "order") and name not in OVERLAPPING)


def _keeps_its_place(kind: OrderKind) -> bool:
    """Whether a request's place follows from itself and the time; SGLang's orders sort the queue anew (`Ranked`)."""
    return not (isinstance(kind.make, type) and issubclass(kind.make, Ranked))


_OFFERED = [name for name, each in QUEUES.items() if not each.is_internal and _keeps_its_place(each)]
ORDERS = (*(name for name in _OFFERED if name != "fcfs"), "aged", "boosted")
"""The orders that `engine.order` offers, besides the default; `aged` and `boosted`: sjf and fair with their times."""

CLASSES = ("a", "b", "c")
# Powers of two: sums of them are exact, in whatever order they are made.
PRICES = st.sampled_from([(1.0, 2.0), (1.0, 1.0), (0.0, 1.0), (2.0, 0.5)])


@st.composite
def orders(draw: st.DrawFn, name: str) -> str:
    """The order with random parameters; `sjf` and `fair` do not change with time, `aged` and `boosted` do."""
    if name == "sjf":
        return "sjf"
    if name == "aged":
        return Order("sjf", aging_s=draw(st.sampled_from([0.0, 0.0078125, 0.0625, 1.0])))
    if name == "edf":
        return Order("edf", deadline_s=draw(st.sampled_from([None, 0.0, 0.03125, 2.0])))
    if name not in ("vtc", "fair", "boosted"):
        found = {key: draw(values(parameter)) for key, parameter in order_parameters(name).items()}
        if "class_s" in found:
            found["class_s"] = draw(st.dictionaries(st.sampled_from(CLASSES), st.sampled_from([0.0, 0.03125, 0.5])))
        return Order(name, **found)
    w_p, w_q = draw(PRICES)
    weights = draw(st.dictionaries(st.sampled_from(CLASSES), st.sampled_from([0.25, 1.0, 2.0, 8.0])))
    parameters: dict[str, Any] = {"class_weights": weights, "w_p": w_p, "w_q": w_q}
    if name == "vtc":
        return Order("vtc", **parameters)
    waits = [None] if name == "fair" else [0.015625, 0.25, 4.0]
    return Order("fair", max_wait_s=draw(st.sampled_from(waits)), **parameters)


@st.composite
def ordered_scenarios(draw: st.DrawFn, policy: str, order: str, *, max_requests: int = 12) -> Scenario:
    """A scenario whose policy has this order, with classes, predictions and deadlines."""
    scenario = draw(scenarios(policy, max_requests=max_requests))
    chosen: Any = scenario.policy
    workload = draw(dressed(scenario.workload))
    return replace(scenario, workload=workload, policy=replace(chosen, order=draw(orders(order))))


@st.composite
def dressed(draw: st.DrawFn, workload: Workload) -> Workload:
    """The workload with classes, and with predictions and deadlines that some requests lack."""
    count = len(workload)
    predicted = st.lists(st.integers(-1, 12).map(lambda n: n or -1), min_size=count, max_size=count)
    deadlines = st.lists(st.sampled_from([np.nan, 0.0, 0.0625, 0.5, 8.0]), min_size=count, max_size=count)
    classes = st.lists(st.integers(0, len(CLASSES) - 1), min_size=count, max_size=count)
    return replace(
        workload,
        class_index=np.array(draw(classes), dtype=np.int64),
        class_names=CLASSES,
        predicted_output_tokens=np.array(draw(predicted), dtype=np.int64),
        deadline_s=np.array(draw(deadlines), dtype=np.float64),
    )


def slower(order: str, factor: float) -> str:
    """The order with its times multiplied."""
    if not isinstance(order, Order):
        return order
    times = {
        k: {name: s * factor for name, s in v.items()} if isinstance(v, dict) else v * factor
        for k, v in order.parameters.items()
        if k.endswith("_s") and v is not None
    }
    return Order(str(order), **{**order.parameters, **times})
