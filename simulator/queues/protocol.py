"""What the engine asks of a waiting queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from simulator.queues.meter import OutputMeter
    from simulator.request_state import RequestState


class WaitingQueue(Protocol):
    """Waiting requests, in the order in which they may be admitted.

    Looking changes nothing. Iteration is lazy: an order that depends on earlier admissions assumes that all
    requests before in the iteration are admitted.
    """

    @property
    def timeless(self) -> bool:
        """Whether the order of the waiting requests changes neither with time nor with the tokens served.

        Where it does, no plan may hold for more than a step while a request waits, nor beyond an arrival.
        """

    @property
    def meter(self) -> OutputMeter | None:
        """Counts output tokens, for an order that depends on them; None for any other."""

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
