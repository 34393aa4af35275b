"""A real server beside its policy: what it adds around the kernels of a step, and the command that starts it.

A policy's file has its server as `SERVER` (`simulator.policies.server_of`). Where nothing was published, the figures
are vLLM's and say so: the form is known to fit, the numbers are a default to be replaced by one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simulator.front_end import FrontEnd
from simulator.timing.host import Host

Since = tuple[int, ...]  # a version, as (0, 19); () is before all
_NEWEST: Since = (10**9,)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The settings of a server besides its policy's parameters. `model` is the value of its model flag."""

    model: str
    tensor_parallel: int
    gpu_memory_utilization: float
    swap_space_gib: float
    block_size: int
    enable_prefix_caching: bool
    enable_expert_parallel: bool


class Command(NamedTuple):
    """A command line, and remarks on what it cannot say."""

    text: str
    remarks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """A server: what it adds to a step (`host`) and between clients and a step (`front_end`), and how it is started.

    An engine that schedules one way only has a host of that way alone. `asynchronous_before` is the host of versions
    before one; `overlaps_since` the version from which on an engine schedules asynchronously by default, None for none.
    `command` writes the command line for a policy; None: no server has the policy.
    """

    front_end: FrontEnd
    front_end_source: str
    synchronous: Host | None = None
    asynchronous: Host | None = None
    asynchronous_before: tuple[Since, Host] | None = None
    overlaps_since: Since | None = ()
    overload_status: int = 503  # HTTP status where the queue is full: 503 of vLLM (`QueueOverflowError`) and SGLang
    command: Callable[[Any, Deployment], Command] | None = None

    def host(self, version: str | None = None, async_scheduling: bool | None = None) -> Host:
        """Return what the host adds to a step.

        `version` None is the newest. `async_scheduling` None is what that version does by default. A newer version
        told to be synchronous is as slow as the last that was so by default, an older one told to be asynchronous as
        quick as the first that is.
        """
        numbers = _NEWEST if version is None else tuple(int(part) for part in version.split(".")[:2])
        overlaps = async_scheduling
        if overlaps is None:
            overlaps = self.overlaps_since is not None and numbers >= self.overlaps_since
        found = self.asynchronous
        if self.asynchronous_before is not None and numbers < self.asynchronous_before[0]:
            found = self.asynchronous_before[1]
        return (found if overlaps else self.synchronous) or found or self.synchronous or Host()

    def host_source(self, host: Host) -> str:
        """Return where figures of the host come from; '' for figures that only the scenario has.

        By the figures, so that a scenario which spells out its engine's own says the same of them.
        """
        for known in (self.asynchronous, (self.asynchronous_before or (None, None))[1], self.synchronous):
            if known is not None and (known.step_s, known.per_seq_s) == (host.step_s, host.per_seq_s):
                return known.source
        return ""

    def source_of_front_end(self, front_end: FrontEnd) -> str:
        """Return where figures of the front end come from; '' for figures that only the scenario has."""
        return self.front_end_source if self.front_end == front_end else ""
