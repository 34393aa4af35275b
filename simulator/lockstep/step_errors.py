"""Predicted step times against measured ones: errors, by regime, and how far apart the busy time drifts.

Everything is a fraction: 0.04 is 4 %. An error is (predicted - measured) / measured, so a positive one is a
prediction that is too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.timing.cost import StepShape

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

REGIMES = ("decode", "prefill", "mixed", "swap")
"""Steps that decode alone, compute prompts alone, do both; and all that move blocks to or from the host."""


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step of a lockstep. `digest` names the planned step (`simulator.lockstep.step_log.digest`),
    `device_digest` the executed one.

    `again_s` is the same step in a second execution, NaN without one; `clock_s` its duration on the run's clock.
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

    @property
    def regime(self) -> str:
        if self.swapped_out_blocks or self.swapped_in_blocks:
            return "swap"
        if not self.shape.prefill_tokens:
            return "decode"
        return "mixed" if self.shape.decode_seqs else "prefill"


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Signed errors of some steps, summed up."""

    steps: int
    mape: float
    median: float
    p95: float
    bias: float

    @classmethod
    def of(cls, errors: Floats) -> StepErrors:
        """Mean, median and 95th percentile of the absolute errors, and the mean of the signed ones; not of none."""
        size = np.abs(errors)
        return cls(
            len(errors),
            float(size.mean()),
            float(np.median(size)),
            float(np.quantile(size, 0.95)),
            float(errors.mean()),
        )


@dataclass(frozen=True, slots=True)
class LockstepErrors:
    """A lockstep summed up. `floor` is the mean absolute difference between two replays of the same steps.

    `drift` is that of the busy time at the end: the sum of all predictions over the sum of all measurements, less 1.
    """

    plans_equal: bool
    all: StepErrors
    regimes: dict[str, StepErrors]
    floor: float | None
    drift: float


@dataclass(frozen=True, slots=True)
class Limits:
    """How far predictions may be off. `floors`: and up to so many times the noise floor, where that is more."""

    mape: float
    p95: float | None
    drift: float
    floors: float

    def failures(self, found: LockstepErrors) -> list[str]:
        """What is not within the limits, a sentence each."""
        mape = max(self.mape, self.floors * (found.floor or 0.0))
        said = [] if found.plans_equal else ["the device did not execute what the simulator planned"]
        if not found.all.mape <= mape:
            said.append(f"step MAPE {found.all.mape:.1%} is above {mape:.1%}")
        if self.p95 is not None and not found.all.p95 <= self.p95:
            said.append(f"step P95 {found.all.p95:.1%} is above {self.p95:.1%}")
        if not abs(found.drift) <= self.drift:
            said.append(f"drift {found.drift:+.1%} is beyond {self.drift:.1%}")
        return said


LIMITS = {"cuda": Limits(0.04, 0.12, 0.02, 0.0), "cpu": Limits(0.15, None, 0.10, 1.3)}
"""By device. A CPU that is shared with others is judged by its own noise."""


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
    steps = [step for step in steps if step.predicted_s == step.predicted_s and step.device_s == step.device_s]
    signed = errors(steps)
    named = np.array([step.regime for step in steps])
    again = np.array([step.again_s for step in steps])
    device = np.array([step.device_s for step in steps])
    return LockstepErrors(
        plans_equal=equal,
        all=StepErrors.of(signed),
        regimes={name: StepErrors.of(signed[named == name]) for name in REGIMES if (named == name).any()},
        floor=None if np.isnan(again).any() else float(np.mean(np.abs(again / device - 1.0))),
        drift=float(drift_curve(steps)[-1]),
    )
