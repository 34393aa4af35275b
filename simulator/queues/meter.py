"""Output tokens by class, counted without walking the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.request_state import DecodeClock, RequestState


class OutputMeter:
    """Output tokens by class. Those of decoding requests advance with the replica's clock, as the requests' own do."""

    __slots__ = ("_clock", "_decoding", "_settled")

    def __init__(self) -> None:
        self._clock: DecodeClock | None = None
        self._decoding: dict[str, int] = {}
        self._settled: dict[str, int] = {}

    def sampled(self, live: RequestState) -> None:
        """A completed prefill has given a token."""
        self._settled[live.class_name] = self._settled.get(live.class_name, 0) + 1

    def joined(self, live: RequestState) -> None:
        """`live` decodes from now on."""
        self._clock = live.clock
        self._change(live, 1)

    def left(self, live: RequestState) -> None:
        """`live` no longer decodes."""
        self._change(live, -1)

    def tokens(self, class_name: str) -> int:
        """Output tokens of a class up to now."""
        ticks = 0 if self._clock is None else self._clock.ticks
        return self._settled.get(class_name, 0) + self._decoding.get(class_name, 0) * ticks

    def _change(self, live: RequestState, by: int) -> None:
        name = live.class_name
        self._decoding[name] = self._decoding.get(name, 0) + by
        self._settled[name] = self._settled.get(name, 0) - by * live.clock.ticks
