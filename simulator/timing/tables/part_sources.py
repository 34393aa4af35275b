"""How the times of a step's parts were come by: what is told of a profile beside its figures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from simulator.timing.profile.profile_schema import Profile

MEASURED, INTERPOLATED, EXTRAPOLATED = "measured", "interpolated", "extrapolated"
ESTIMATED, ASSUMED = "estimated", "assumed"
"""At that size; between sizes; beyond them; by a form that holds on other cards; from a datasheet or another card."""


@dataclass(frozen=True, slots=True)
class PartSource:
    """A part of a step, how its times were come by, in one of the words above, and why."""

    name: str
    how: str
    words: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.how}" + (f" ({self.words})" if self.words else "")


def neighbours(measured: Collection[int], value: float) -> tuple[int | None, int | None]:
    """The largest measured size below a value, and the smallest above it; None where there is none."""
    below, above = [size for size in measured if size < value], [size for size in measured if size > value]
    return max(below, default=None), min(above, default=None)


def parts_of(profile: Profile) -> tuple[PartSource, ...]:
    """How the parts of a composed profile were come by; none of a fitted one."""
    return tuple(PartSource(*part) for part in profile.document.get("parts", ()))
