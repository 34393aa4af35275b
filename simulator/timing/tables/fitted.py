"""How the parts of a fitted profile were come by, in the words of composed ones (`PartSource`)."""

from __future__ import annotations

from simulator.timing.profile.profile_schema import Profile
from simulator.timing.profile.step import JointTable
from simulator.timing.tables.part_sources import ASSUMED, ESTIMATED, MEASURED, PartSource

UNEQUAL = "unequal contexts"
"""The part, and its name among those that a profile says are assumed."""

WHOLE_STEP = "step"
"""A curve of whole steps, of a profile that was fitted to a log."""


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
        parts.append(PartSource(UNEQUAL, ASSUMED, "nothing"))
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
