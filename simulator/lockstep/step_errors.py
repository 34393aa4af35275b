"""Predicted step times against measured ones: errors, by regime, and how far apart the busy time drifts.

Everything is a fraction: 0.04 is 4 %. An error is (predicted - measured) / measured, so a positive one is a
prediction that is too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from simulator.timing.cost import StepShape

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
    `power_w` are the GPU's, NaN where it does not tell.
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

    @property
    def regime(self) -> str:
        if self.swapped_out_blocks or self.swapped_in_blocks:
            return "swap"
        if not self.shape.prefill_tokens:
            return "decode"
        return "mixed" if self.shape.decode_seqs else "prefill"


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Signed errors of some steps, summed up.

    `drift` is that of their busy time: the sum of the predictions over that of the measurements, less 1. `floor` is the
    mean absolute difference between two executions of them, None without a second one.
    """

    steps: int
    mape: float
    median: float
    p95: float
    bias: float
    drift: float
    floor: float | None

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
        )


@dataclass(frozen=True, slots=True)
class LockstepErrors:
    """A lockstep summed up, without the steps that are flagged.

    `flagged` of `of` steps are, `stalled` of them as stalls. `drift_floor` is how far two executions differ in busy
    time, None without a second one.
    """

    plans_equal: bool
    all: StepErrors
    regimes: dict[str, StepErrors]
    drift_floor: float | None = None
    flagged: int = 0
    stalled: int = 0
    of: int = 0

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
    by_regime = {name: [step for step in kept if step.regime == name] for name in REGIMES}
    again, device = _again_and_device(kept)
    return LockstepErrors(
        plans_equal=equal,
        all=StepErrors.of(kept),
        regimes={name: StepErrors.of(chosen) for name, chosen in by_regime.items() if chosen},
        drift_floor=None if np.isnan(again).any() else float(abs(again.sum() / device.sum() - 1.0)),
        flagged=sum(bool(step.flag) for step in known),
        stalled=sum(step.flag == STALL for step in known),
        of=len(known),
    )


def _again_and_device(steps: Sequence[ComparedStep]) -> tuple[Floats, Floats]:
    return np.array([step.again_s for step in steps]), np.array([step.device_s for step in steps])
