"""The waiting queue, as the engine uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from simulator.request_state import RequestState


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
