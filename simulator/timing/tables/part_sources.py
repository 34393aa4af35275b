"""How the times of a step's parts were come by: what is told of a profile beside its figures."""

from collections.abc import Collection
from dataclasses import dataclass

from simulator.timing.profile.profile_schema import Profile
from simulator.timing.profile.step import JointTable

MEASURED, INTERPOLATED, EXTRAPOLATED = "measured", "interpolated", "extrapolated"
ESTIMATED, ASSUMED, BORROWED = "estimated", "assumed", "borrowed"
"""At that size; between sizes; beyond them; by a form that holds on other cards; from a datasheet or another card; from
kernels of another engine or version on the same card."""
UNEQUAL = "unequal contexts"  # the part, and its name among those that a profile says are assumed
NOTHING = "nothing"  # how the words of a part begin that costs nothing, for want of rows
WHOLE_STEP = "step"  # a curve of whole steps, of a profile that was fitted to a log


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


def fitted_parts(profile: Profile) -> tuple[PartSource, ...]:
    """The parts of a profile that was fitted to rows of its model; none of a composed one."""
    document = profile.document
    if "parts" in document:
        return ()
    assumed = document.get("assumed", ())
    curves = (*profile.layer_curves, *profile.step_curves, *profile.row_curves)
    parts = []
    for how in (MEASURED, ASSUMED):
        names = [name for name in curves if (name in assumed) == (how == ASSUMED)]
        if names:
            parts.append(PartSource(", ".join(names), how, "from bytes and launches" if how == ASSUMED else ""))
    if WHOLE_STEP in curves:
        return tuple(parts)
    attention = profile.attention
    if isinstance(attention.prompt, JointTable):
        parts.append(PartSource("attention", MEASURED, "prompts and decodes in one kernel"))
    else:
        times = f", decodes {attention.beside:.2f} times as long" if attention.beside != 1 else ""
        parts += [PartSource("attention", MEASURED, "prompts and decodes apart")]
        parts += [PartSource("prompts beside decodes", ESTIMATED, f"added{times}")]
    if profile.skew is None:
        parts.append(PartSource(UNEQUAL, ASSUMED, NOTHING))
    else:
        listed = UNEQUAL in assumed
        words = "thread blocks listed over the multiprocessors" if listed else "batches of two lengths"
        parts.append(PartSource(UNEQUAL, ESTIMATED if listed else MEASURED, words))
    if profile.experts is not None:
        parts.append(PartSource("experts", MEASURED))
    if profile.all_reduce is not None:
        source = str(document["all_reduce"].get("from", ""))
        nominal = "nominal" in source
        parts.append(PartSource("all-reduce", ASSUMED if nominal else MEASURED, source if nominal else ""))
    return tuple(parts)
