"""The link that KV goes over from prefilling to decoding replicas: shared by all, one transfer after the other.

Transfers are whole: a request's KV leaves when it is computed and there are blocks for it. So do DistServe (Zhong et
al., OSDI 2024, section 4.3: decoding instances pull when they have memory, and prefilling ones keep the KV meanwhile)
and vLLM's NIXL connector; Splitwise (Patel et al., ISCA 2024) also sends layer by layer behind the computation, which
hides most of the time of a long prompt's transfer and is not modelled.
"""

from collections.abc import Callable
from dataclasses import dataclass

from simulator.engine.clock import URGENT, Clock


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """`latency_s` is added to each transfer and does not keep the link busy.

    `fails` says of which requests, by row, a load by a pull connector fails.
    """

    bytes_per_s: float = 50e9  # one port of 400 Gbit/s
    latency_s: float = 0.0
    fails: Callable[[int], bool] | None = None


class Link:
    """First come, first served."""

    def __init__(self, clock: Clock, speed: LinkSpeed) -> None:
        self._clock = clock
        self._speed = speed
        self._free_s = 0.0

    def send(self, size: float, then: Callable[[], None]) -> tuple[float, float]:
        """Send so many bytes after all before; `then` is called when they are there. Returns start and end."""
        start_s = max(self._clock.now, self._free_s)
        self._free_s = start_s + size / self._speed.bytes_per_s
        end_s = self._free_s + self._speed.latency_s
        self._clock.call(end_s, then, URGENT)
        return start_s, end_s
