"""How much of a run lies outside of what a profile's tables cover: counted afterwards, from the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simulator.timing.cost import StepCounts
    from simulator.timing.profile.profile_schema import Profile


def remarks(profile: Profile, steps: StepCounts) -> tuple[str, ...]:
    """A warning where steps were extrapolated, with how many and why; nothing where none was."""
    covered = profile.covered()
    prefilling = steps.prefill_tokens > 0
    decoding = steps.decoding + steps.held
    alone = ~prefilling & (decoding > 0)
    seqs = np.maximum(decoding, 1)
    # The contexts of a run grow by one a step: so many of its steps are still within.
    within = np.floor_divide(covered["context"] * seqs - steps.context_tokens, seqs) + 1
    beyond = {
        "contexts": np.where(alone, steps.repeat - np.clip(within, 0, steps.repeat), 0),
        "decodes": np.where(decoding > covered["seqs"], steps.repeat, 0),
        "tokens": np.where(steps.tokens > covered["tokens"], steps.repeat, 0),
    }
    either = np.max(np.stack(list(beyond.values())), axis=0).sum() if len(steps.repeat) else 0
    if not either:
        return ()
    units = {"contexts": "a mean context", "decodes": "decodes", "tokens": "tokens"}
    limits = {"contexts": covered["context"], "decodes": covered["seqs"], "tokens": covered["tokens"]}
    why = "; ".join(
        f"{int(counts.sum()):,} with more than {limits[name]:,} as {units[name]}"
        if name == "contexts"
        else f"{int(counts.sum()):,} with more than {limits[name]:,} {units[name]}"
        for name, counts in beyond.items()
        if counts.any()
    )
    total = int(steps.repeat.sum())
    return (f"warning: {int(either):,} of {total:,} steps lie outside of what {profile.name} measured: {why}",)
