"""A queue order: its name with parameters, as policies pass it on; and its declaration, as its file makes it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from simulator.parameters import Parameter, parameters_of
from simulator.queues.protocol import WaitingQueue


class Order(str):
    """A queue order with parameters: `Order("sjf", aging_s=30.0)`.

    It is the order's name and may stand wherever a name may. Equality is that of names.
    """

    parameters: dict[str, Any]

    def __new__(cls, name: str, **parameters: Any) -> Self:
        order = super().__new__(cls, name)
        order.parameters = parameters
        return order

    def __repr__(self) -> str:
        given = [f"{name}={value!r}" for name, value in self.parameters.items()]
        return f"Order({', '.join([repr(str(self)), *given])})"


@dataclass(frozen=True, slots=True)
class OrderKind:
    """An order as its file declares it. `make` returns an empty queue; its arguments are the order's parameters.

    `needs_prefix_cache`: without one the order would be another; `cache_parameter` is the parameter of which alone that
    holds. `needs_radix_tree`: that cache must be SGLang's.
    `is_internal`: a policy's own, which `engine.order` does not offer.
    """

    make: Callable[..., WaitingQueue]
    needs_prefix_cache: bool = False
    cache_parameter: str = ""
    needs_radix_tree: bool = False
    is_internal: bool = False

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return parameters_of(self.make)
