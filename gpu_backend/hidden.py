"""Device time without the host's: launches are queued behind a kernel that only waits.

Launched kernel by kernel, a step of a few hundred small ones takes as long as Python needs to launch them, which is no
property of its shape (servers capture such steps in graphs). So a kernel that waits goes first, and the mark from which
time counts stands behind it: when the device comes to the mark, everything is queued. Whether the wait sufficed is
seen by the host's own clock; where it did not, the work is done over behind a longer one. A queue that is full makes
the host wait for the device however long that waits: such work is captured as a graph, whose launch is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

SHORTEST_WAIT_S = 5e-5
LONGEST_WAIT_S = 0.25
SLACK = 1.5  # a wait over the launches that it is meant for
SAFE = 0.9  # of a wait that launches may take


class Stream(Protocol):
    """A device's queue, and the host's clock."""

    def synchronize(self) -> None:
        """Wait until the queue is empty."""

    def wait(self, seconds: float) -> None:
        """Queue a kernel that does nothing for at least so long."""

    def mark(self) -> Any:
        """Queue a mark that keeps the time at which the device comes to it."""

    def between(self, first: Any, last: Any) -> float:
        """Device seconds from one mark to another, waiting for the second."""

    def clock(self) -> float:
        """Seconds of the host."""


class Timed(NamedTuple):
    """Device seconds of some work, what the host took to launch it, and whether that is not in the former."""

    seconds: float
    launch_s: float
    is_hidden: bool


def timed(stream: Stream, work: Callable[[], object], launch_s: float) -> Timed:
    """Time `work`, which may be done over; launching work of its kind took `launch_s` before, 0.0 if not known."""
    wait_s = max(SHORTEST_WAIT_S, SLACK * launch_s)
    found = _behind(stream, work, wait_s)
    if not found.is_hidden:
        found = _behind(stream, work, min(LONGEST_WAIT_S, 2.0 * found.launch_s))
    return found


def _behind(stream: Stream, work: Callable[[], object], wait_s: float) -> Timed:
    stream.synchronize()
    stream.wait(wait_s)
    first = stream.mark()
    begin_s = stream.clock()
    work()
    launch_s = stream.clock() - begin_s
    seconds = stream.between(first, stream.mark())
    return Timed(seconds, launch_s, launch_s < SAFE * wait_s)


class Launches:
    """Time work on a stream, and remember by kind what launching it took: a graph is launched faster than a step."""

    def __init__(self, stream: Stream, capture: Callable[[Callable[[], object]], Callable[[], object]]) -> None:
        self._stream, self._capture = stream, capture
        self._launch_s: dict[str, float] = {}

    def timed(self, work: Callable[[], object], kind: str) -> Timed:
        """Time `work`; as a graph where its launches cannot be hidden otherwise. `launch_s` is that without a graph."""
        found = timed(self._stream, work, self._launch_s.get(kind, 0.0))
        self._launch_s[kind] = min(found.launch_s, LONGEST_WAIT_S / SLACK)
        if found.is_hidden:
            return found
        try:
            replay = self._capture(work)
        except Exception:  # what cannot be captured: an operator that waits for the device
            return found
        return timed(self._stream, replay, 0.0)._replace(launch_s=found.launch_s)
