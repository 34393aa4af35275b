"""The basis of a run's step times: measured kernels, or how far from these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from scenarios.assembly.fleet_parts import BuiltGroup

if TYPE_CHECKING:
    from simulator.timing.profile import Profile
    from simulator.timing.tables.part_sources import PartSource

MEASURED, INTERPOLATED, EXTRAPOLATED = "measured", "interpolated", "extrapolated"
OTHER_ENGINE, ROOFLINE = "other engine", "roofline"
BASES = (MEASURED, INTERPOLATED, EXTRAPOLATED, OTHER_ENGINE, ROOFLINE)
"""From the surest to the least sure."""

_HOW = {"borrowed": OTHER_ENGINE, "extrapolated": EXTRAPOLATED, "interpolated": INTERPOLATED}
_SMALL = ("router", "lm_head", "top_k", "sampler", "shared_", "dense_")
"""Parts that no step consists of: what is said of them says little of it."""


OWN = "own_steps"
"""The key of a profile that `calibrate fit` made of what an engine measured of itself."""


@dataclass(frozen=True, slots=True)
class Off:
    """The sizes of log(measured / predicted) below which a step lies with each of the `levels`."""

    levels: tuple[float, ...]
    log_ratio: tuple[float, ...]

    def factors(self, coverage: float, times: float) -> tuple[float, float]:
        """Return the factors between which the real time lies with this probability, made so many times as wide."""
        off = times * float(np.interp(coverage, self.levels, self.log_ratio))
        return exp(-off), exp(off)


@dataclass(frozen=True, slots=True)
class Basis:
    """One of `BASES`, and which parts of a step it is by; of a user's own measured steps how far these are off."""

    name: str
    why: str
    own: Off | None = None


def basis_of(fleet: Sequence[BuiltGroup]) -> Basis | None:
    """Return the least sure basis of a fleet's groups; None where one of them has a cost of the user's own."""
    found = [_of_group(built) for built in fleet]
    bases = [each for each in found if each is not None]
    return max(bases, key=lambda each: BASES.index(each.name)) if len(bases) == len(found) else None


def _of_group(built: BuiltGroup) -> Basis | None:
    kind = built.group.scenario.resolve_cost().kind
    if kind == "roofline":
        return Basis(ROOFLINE, "operations and bytes of the model, no measured kernel")
    if kind != "profile":
        return None
    from simulator.timing.profile import ProfileCost
    from simulator.timing.tables import parts_of

    cost = built.parts.cost
    while not isinstance(cost, ProfileCost) and hasattr(cost, "cost"):
        cost = cost.cost
    if not isinstance(cost, ProfileCost):
        return None
    found = _of_profile(cost.profile, parts_of(cost.profile))
    return replace(found, why="; ".join((found.why, *_left_open(cost.profile))))


def _left_open(profile: Profile) -> list[str]:
    """What no kernel was measured of, so that it costs nothing here: its cost lies within the interval or not."""
    from simulator.timing.tables import parts_of
    from simulator.timing.tables.part_sources import NOTHING, UNEQUAL, fitted_parts

    parts = (*parts_of(profile), *fitted_parts(profile))
    nothing = any(part.name == UNEQUAL and part.words.startswith(NOTHING) for part in parts)
    return ["assumed: requests of mixed length cost as much as equal ones (not measured)"] if nothing else []


def _of_profile(profile: Profile, parts: Iterable[PartSource]) -> Basis:
    if (own := profile.document.get(OWN)) is not None:
        error = profile.document["errors"]["step"]["random"]["mape"]
        why = f"{own['rows']} steps by {profile.document['software']}, held out {error:.1f} % off ({profile.name})"
        return Basis(MEASURED, why, Off(tuple(own["levels"]), tuple(own["log_ratio"])))
    named: dict[str, list[str]] = {}
    for part in parts:
        if part.how in _HOW and not part.name.startswith(_SMALL):
            named.setdefault(_HOW[part.how], []).append(part.name)
    for basis in reversed(BASES):
        if basis in named:
            return Basis(basis, f"{basis}: {', '.join(named[basis])} ({profile.name})")
    return Basis(MEASURED, f"kernels of {profile.name}")
