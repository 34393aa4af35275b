"""A queue order: the waiting queue as the engine uses it, the order's name with parameters, and its declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from simulator.parameters import Parameter, parameters_of

if TYPE_CHECKING:
    from simulator.request_state import RequestState


# The waiting queue, as the engine uses it.


class Meter(Protocol):
    """Told of the requests that decode, for an order that depends on the tokens served."""

    def sampled(self, live: RequestState) -> None:
        """A completed prefill has given a token."""

    def joined(self, live: RequestState) -> None:
        """`live` decodes from now on."""

    def left(self, live: RequestState) -> None:
        """`live` no longer decodes."""


class WaitingQueue(Protocol):
    """Waiting requests, in the order in which they may be admitted.

    Looking changes nothing. Iteration is lazy: an order that depends on earlier admissions assumes that all
    requests before in the iteration are admitted.
    """

    @property
    def timeless(self) -> bool:
        """True if the order of the waiting requests depends neither on time nor on the tokens served.

        If it does depend on them, no plan may hold for more than a step while a request waits, nor beyond an arrival.
        """

    @property
    def meter(self) -> Meter | None:
        """Receives what the batch reports of its requests; None for an order that does not depend on them."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[RequestState]: ...

    @property
    def head(self) -> RequestState: ...

    def at(self, now_s: float) -> None:
        """From now on the order is that of this moment. Told before each plan, unless the order is timeless."""

    def push(self, request: RequestState, /) -> None:
        """A request that has just arrived."""

    def put_back(self, request: RequestState) -> None:
        """A request that was preempted."""

    def remove(self, request: RequestState, /) -> None:
        """A request that enters the batch."""

    def drop(self, request: RequestState, /) -> None:
        """A request whose client has given up: it leaves without service."""


# The order: its name with parameters, as policies pass it on; and its declaration, as its file makes it.


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
