"""A real server beside its policy: what it adds around the kernels of a step, and the command that starts it.

A policy's file has its server as `SERVER` (`simulator.policies.server_of`). Where nothing was published, the figures
are vLLM's and say so: the form is known to fit, the numbers are a default to be replaced by one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.front_end import FrontEnd
from simulator.timing.host import Host

Since = tuple[int, ...]
"""A version, as (0, 19); () is before all."""
_NEWEST: Since = (10**9,)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of a server and the key of the scenario that says the same, in both directions.

    `names` are separated by spaces: the first is written, all are read; of an option in a file they are keys, dotted
    where they lie deeper. A flag takes a value, unless it `means` one. `default` is what the server does without the
    flag; None where that depends on something else. It is then left out when it is written, unless it is `always`
    written. `words` are the server's own words for values of the scenario.
    """

    names: str
    key: str
    default: object = None
    means: object = None
    always: bool = False
    is_written: bool = True
    words: Mapping[object, object] = field(default_factory=dict)

    def says(self, value: object) -> bool:
        """Return whether this flag is to be written for a value of its key."""
        if value is None or not self.is_written or (value == self.default and not self.always):
            return False
        return self.means is None or self.means == value


@dataclass(frozen=True, slots=True)
class Launch:
    """A server's command line: the first of `programs` is written, all are recognised, also by the name of an `image`.

    `model` is the flag of the model, '' where it is the first argument. `options` are keys of a YAML file which
    `options_flag` names. `without_effect` are flags that change no schedule, by why; `not_modelled` those that may, by
    what they ask for. Flags of `missing` have no effect here unless they ask for more than one.
    """

    policy: str
    programs: Sequence[str]
    images: Sequence[str]
    model: str
    flags: Sequence[Flag]
    without_effect: Mapping[str, str]
    not_modelled: Mapping[str, str]
    options: Sequence[Flag] = ()
    options_flag: str = ""
    port: int = 8000
    image: str = ""  # of a container that starts it
    defaults: Callable[[float, str, str | None], Mapping[str, object]] | None = None
    remarks: Callable[[Any, Mapping[str, object]], Sequence[str]] | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """A server: what it adds to a step (`host`) and between clients and a step (`front_end`), and how it is started.

    An engine that schedules one way only has a host of that way alone. `asynchronous_before` is the host of versions
    before one; `overlaps_since` the version from which on an engine schedules asynchronously by default, None for none.
    `launch` is its command line; None: no server has the policy.
    """

    front_end: FrontEnd
    front_end_source: str
    synchronous: Host | None = None
    asynchronous: Host | None = None
    asynchronous_before: tuple[Since, Host] | None = None
    overlaps_since: Since | None = ()
    overload_status: int = 503  # HTTP status where the queue is full: 503 of vLLM (`QueueOverflowError`) and SGLang
    launch: Launch | None = None

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
