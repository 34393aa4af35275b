"""Predicted step times against measured ones: errors, by regime, and how far apart the busy time drifts.

Everything is a fraction: 0.04 is 4 %. An error is (predicted - measured) / measured, so a positive one is a
prediction that is too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
from numpy.typing import NDArray

from simulator.timing.cost import StepShape

Floats = NDArray[np.float64]

REGIMES = ("decode", "prefill", "mixed", "swap")
"""Steps that decode alone, compute prompts alone, do both; and all that move blocks to or from the host."""

CANARY, STALL = "canary", "stall"
"""Flags: beside a canary that had drifted; two executions that are further apart than `STALL_FACTOR`."""
STALL_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step of a lockstep. `digest` names the planned step (`simulator.lockstep.step_log.digest`),
    `device_digest` the executed one.

    `again_s` is the same step in a second execution, NaN without one; `clock_s` its duration on the run's clock.
    `canary` is the time of a fixed piece of work beside the step, over its reference. `flag` says why the step is set
    aside: "canary" (the device had changed), "stall" (the two executions are far apart); empty for most. `sm_mhz` and
    `power_w` are the GPU's, NaN where it does not tell. `control` is the time of a fixed step of the same regime over
    what it was when the profile was measured (`simulator.lockstep.canary`), NaN where that is not known.
    """

    digest: str
    device_digest: str
    shape: StepShape
    swapped_out_blocks: int
    swapped_in_blocks: int
    predicted_s: float
    device_s: float
    host_s: float
    again_s: float
    clock_s: float
    canary: float = 1.0
    flag: str = ""
    sm_mhz: float = nan
    power_w: float = nan
    control: float = nan

    @property
    def regime(self) -> str:
        return "swap" if self.swapped_out_blocks or self.swapped_in_blocks else regime_of(self.shape)


def regime_of(shape: StepShape) -> str:
    """The regime of a step that moves no blocks."""
    if not shape.prefill_tokens:
        return "decode"
    return "mixed" if shape.decode_seqs else "prefill"


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Signed errors of some steps, summed up.

    `drift` is that of their busy time: the sum of the predictions over that of the measurements, less 1. `floor` is the
    mean absolute difference between two executions of them, None without a second one. `control` is the median of the
    controls beside them, less 1: how much longer a fixed step takes now than when the profile was measured; None where
    that is not known.
    """

    steps: int
    mape: float
    median: float
    p95: float
    bias: float
    drift: float
    floor: float | None
    control: float | None = None

    @classmethod
    def of(cls, steps: Sequence[ComparedStep]) -> StepErrors:
        """Mean, median and 95th percentile of the absolute errors, and the mean of the signed ones; not of none."""
        signed = errors(steps)
        size = np.abs(signed)
        again, device = _again_and_device(steps)
        return cls(
            len(steps),
            float(size.mean()),
            float(np.median(size)),
            float(np.quantile(size, 0.95)),
            float(signed.mean()),
            float(drift_curve(steps)[-1]),
            None if np.isnan(again).any() else float(np.mean(np.abs(again / device - 1.0))),
            _control(steps),
        )


@dataclass(frozen=True, slots=True)
class LockstepErrors:
    """A lockstep summed up, without the steps that are flagged.

    `flagged` of `of` steps are, `stalled` of them as stalls. `drift_floor` is how far two executions differ in busy
    time, None without a second one. `canary` is the median of the canary's times over the profile's, less 1.
    `in_ratio` sums up the same steps with the times of each regime in ratio to its control's; None without controls.
    """

    plans_equal: bool
    all: StepErrors
    regimes: dict[str, StepErrors]
    drift_floor: float | None = None
    flagged: int = 0
    stalled: int = 0
    of: int = 0
    canary: float = 0.0
    in_ratio: LockstepErrors | None = None

    @property
    def floor(self) -> float | None:
        """Mean absolute difference between two executions of the same steps."""
        return self.all.floor

    @property
    def drift(self) -> float:
        """That of the busy time at the end: the sum of all predictions over the sum of all measurements, less 1."""
        return self.all.drift


def errors(steps: Sequence[ComparedStep]) -> Floats:
    """The signed error of each step; NaN where one side has none."""
    device = np.array([step.device_s for step in steps])
    return np.asarray(np.array([step.predicted_s for step in steps]) / device - 1.0)


def drift_curve(steps: Sequence[ComparedStep]) -> Floats:
    """The drift of the busy time after each step."""
    predicted = np.cumsum([step.predicted_s for step in steps])
    return np.asarray(predicted / np.cumsum([step.device_s for step in steps]) - 1.0)


def agreement(steps: Sequence[ComparedStep]) -> LockstepErrors:
    """Sum up a lockstep; ValueError without a step."""
    if not steps:
        raise ValueError("a lockstep without a step")
    equal = all(step.digest == step.device_digest for step in steps)
    known = [step for step in steps if step.predicted_s == step.predicted_s and step.device_s == step.device_s]
    kept = [step for step in known if not step.flag] or known
    found = _summed(kept, known, plans_equal=equal)
    controls = {name: each.control for name, each in found.regimes.items() if each.control is not None}
    if not controls:
        return found
    there = [_in_ratio(step, 1.0 + controls.get(step.regime, 0.0)) for step in kept]
    return replace(found, in_ratio=_summed(there, known, plans_equal=equal))


def _in_ratio(step: ComparedStep, control: float) -> ComparedStep:
    return replace(step, device_s=step.device_s / control, again_s=step.again_s / control)


def _control(steps: Sequence[ComparedStep]) -> float | None:
    known = [step.control for step in steps if step.control == step.control]
    return float(np.median(known)) - 1.0 if known else None


def _summed(kept: Sequence[ComparedStep], known: Sequence[ComparedStep], *, plans_equal: bool) -> LockstepErrors:
    by_regime = {name: [step for step in kept if step.regime == name] for name in REGIMES}
    again, device = _again_and_device(kept)
    return LockstepErrors(
        plans_equal=plans_equal,
        all=StepErrors.of(kept),
        regimes={name: StepErrors.of(chosen) for name, chosen in by_regime.items() if chosen},
        drift_floor=None if np.isnan(again).any() else float(abs(again.sum() / device.sum() - 1.0)),
        flagged=sum(bool(step.flag) for step in known),
        stalled=sum(step.flag == STALL for step in known),
        of=len(known),
        canary=float(np.median([step.canary for step in kept])) - 1.0,
    )


def _again_and_device(steps: Sequence[ComparedStep]) -> tuple[Floats, Floats]:
    return np.array([step.again_s for step in steps]), np.array([step.device_s for step in steps])
