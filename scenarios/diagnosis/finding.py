"""A rule's claim about a run, and the finding that diagnosis makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.results.records import Floats

if TYPE_CHECKING:
    from scenarios.diagnosis.evidence import Evidence

Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """Keys of the scenario to change, dotted, and why."""

    change: Mapping[str, Value]
    why: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A rule's claim: the seconds of every late request's lateness that a cause explains.

    `waited_s` lie before its first token and `slowed_s` after it. `lost` is the share of `lost_of` (the GPU time, or
    the tokens that it computed) that the cause cost. `numbers` are the evidence, `from_s` and `to_s` the time that it
    holds for, by default from when the first of the late requests explained came to when the last was served.
    """

    words: str
    numbers: Mapping[str, Value]
    remedies: Sequence[Remedy]
    waited_s: Floats | None = None
    slowed_s: Floats | None = None
    lost: float = 0.0
    lost_of: str = "GPU time"
    from_s: float | None = None
    to_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A finding: its name, what it means, how it is told, and what helps; `find` gives None where it is not there.

    `find` is given the evidence and what the rules before it left of each late request's seconds.
    """

    name: str
    title: str
    means: str
    told_by: str
    helps: str
    find: Callable[[Evidence, Floats], Claim | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's claim weighed.

    `severity` is the share of all requests that the cause made late, or of the GPUs' work that it lost; `explains` its
    share of the late requests. Findings that made requests late come before those that only cost work.
    """

    rule: Rule
    claim: Claim
    severity: float
    explains: float
    from_s: float
    to_s: float

    @property
    def late(self) -> bool:
        """True if it made requests late."""
        return self.explains > 0


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found of a run, the worst first. `unexplained` is the share of the late requests without a cause."""

    found: tuple[Finding, ...] = ()
    requests: int = 0
    late: int = 0
    broken: bool = False
    by_slo: bool = True
    unexplained: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """True if the SLO is kept and nothing was found."""
        return not self.found and not self.broken
