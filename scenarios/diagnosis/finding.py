"""A rule's claim about a run, and the finding that diagnosis makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.results.records import Floats

if TYPE_CHECKING:
    from scenarios.diagnosis.evidence import Evidence


# Numbers in the sentences of findings.


def seconds(value: float) -> str:
    """A time: 12.4 ms, 3.2 s, 181 s, 12.4 min."""
    if not math.isfinite(value):
        return "-"
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:.1f} min"


def moment(value: float) -> str:
    """A moment of the run: 181 s, 12.4 min."""
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.1f} min"


def count(value: float) -> str:
    """A number: 1,234; 12.3; 0.45."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def rounded(value: float) -> float | None:
    """Round evidence for JSON to four digits; None for what is no number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


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
    the tokens that it computed) that the cause cost. `numbers` are the evidence; it holds for the time `span_s`, unless
    given from the arrival of the first request that it explains to the end of the last.
    """

    words: str
    numbers: Mapping[str, Value]
    remedies: Sequence[Remedy]
    waited_s: Floats | None = None
    slowed_s: Floats | None = None
    lost: float = 0.0
    lost_of: str = "GPU time"
    span_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, what its finding means, how that is told, and what helps.

    `find` takes the evidence and the seconds of each late request that earlier rules left. It gives None if the cause
    is not there.
    """

    name: str
    title: str
    means: str
    told_by: str
    helps: str
    find: Callable[[Evidence, Floats], Claim | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's claim, weighed.

    `severity` is the share of all requests that the cause made late, or of the GPUs' work that it lost. `explains` is
    its share of the late requests. Findings about late requests come before those that only cost work.
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
    """The findings of a run, the worst first. `unexplained` is the share of the late requests without a cause."""

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
