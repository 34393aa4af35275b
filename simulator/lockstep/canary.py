"""The canary and the controls of a profile, carried into the lockstep that judges it.

Times are comparable between two processes only as far as the device is the same in both. The *canary* says how fast it
is; where times are ratios to the canary's, as on a CPU, a device that is slower as a whole does not matter. What does
not cancel out (a neighbour that takes memory bandwidth slows decodes more than prompts) shows in the *controls*: fixed
steps, one for each regime, timed in the same terms in both processes. Neither is ever fitted, so that no profile,
right or wrong, moves them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, NamedTuple


class ControlStep(NamedTuple):
    """A fixed step: `decodes` requests of `context` KV tokens, and a prompt chunk of `chunk` tokens."""

    decodes: int
    context: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Readings:
    """Repeated timings summed up: their median, and how far the middle half of them spreads, as a fraction of it."""

    median: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Readings:
        """Summarise the values, of which there is at least one."""
        middle = median(values)
        if len(values) < 2:
            return cls(middle, 0.0)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, (high - low) / middle)


@dataclass(frozen=True, slots=True)
class Canary:
    """A canary as a profile has it: what it was (`of`), and the seconds in whose terms the profile's times are.

    `seen` are its times while the profile was measured, over that reference. `controls` are the fixed steps by regime,
    with their seconds.
    """

    of: str
    reference_s: float
    seen: Readings = Readings(1.0, 0.0)
    controls: Mapping[str, tuple[ControlStep, Readings]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As profiles and measured.json have it, in microseconds."""
        return {
            "us": round(self.reference_s * 1e6, 2),
            "of": self.of,
            "seen": {"median": round(self.seen.median, 4), "spread": round(self.seen.spread, 4)},
            "controls": {
                name: {**step._asdict(), "us": round(took.median * 1e6, 2), "spread": round(took.spread, 4)}
                for name, (step, took) in self.controls.items()
            },
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Canary:
        """Read what `to_json` wrote; KeyError, TypeError or ValueError for anything else. Older ones lack controls."""
        seen = found.get("seen", {"median": 1.0, "spread": 0.0})
        controls = {
            str(name): (
                ControlStep(*[int(each[key]) for key in ControlStep._fields]),
                Readings(float(each["us"]) * 1e-6, float(each["spread"])),
            )
            for name, each in found.get("controls", {}).items()
        }
        seen_then = Readings(float(seen["median"]), float(seen["spread"]))
        return cls(str(found["of"]), float(found["us"]) * 1e-6, seen_then, controls)
