"""A KV connector as a policy sees it: KV that need not be computed, since another memory or server has it."""

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from simulator.request import RequestView


class Found(NamedTuple):
    """Tokens behind the local prefix hit that can be loaded; between steps (`later`), or within the step."""

    tokens: int
    later: bool


class ConnectorView(Protocol):
    """Requests whose KV is elsewhere. Reading it changes nothing."""

    @property
    def holding(self) -> Collection[RequestView]:
        """Requests that neither wait nor run, and hold blocks for their load; in the order of the queue."""

    def look(self, request: RequestView, computed_tokens: int) -> Found | None:
        """What can be loaded behind these tokens of a waiting request; None if that is not known yet."""

    def is_loading(self, request: RequestView) -> bool:
        """True if the KV of a holding request is on its way."""

    def is_settled(self, request: RequestView) -> bool:
        """True if the KV of a holding request is in its blocks, and known to the prefix cache."""

    def is_fenced(self, request: RequestView) -> bool:
        """True if a running request's blocks cannot be freed yet, as a step in flight writes them."""


Send = Callable[[int, int], float]
"""Sends so many blocks of the request with this row, which is no transfer where there are none; returns its end."""


class Loader(Protocol):
    """A replica's connector as its fleet sees it."""

    def attach(self, send: Send) -> bool:
        """Let the fleet send what is loaded; returns whether the KV comes from another server."""

    def offer(self, row: int, *, fails: bool) -> None:
        """Another server has a request's KV, whose transfer may fail."""
