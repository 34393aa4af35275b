"""Where requests come from when arrivals depend on answers."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from simulator.workload import Workload


class Call(NamedTuple):
    """A request that will arrive: `row` is its row in the workload of its source."""

    arrival_s: float
    row: int


class Source(Protocol):
    """A source of requests. Its answers do not depend on the order of calls within one moment."""

    @property
    def rows(self) -> Workload:
        """The source's requests, without their arrival times. It may grow; rows that are there do not change."""

    def number(self, row: int) -> int:
        """The place of a request among those of its class: what it draws random numbers by."""

    def first(self) -> Iterator[Call]:
        """The requests that wait for no answer, in order of arrival."""

    def answered(self, row: int, at_s: float) -> Iterable[Call]:
        """The requests that follow the answer to `row`, which the client has at `at_s`: none before `at_s`."""

    def failed(self, row: int, at_s: float) -> Iterable[Call]:
        """The requests that come though `row` was given up at `at_s`; those that needed its answer do not."""
