"""Predicted step times against measured ones: errors, the verdict on them, and a CSV file of the steps."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.timing.cost import COUNTS, StepShape

# Predicted step times against measured ones: errors, by regime, and how far apart the busy time drifts.
#
# Everything is a fraction: 0.04 is 4 %. An error is (predicted - measured) / measured, so a positive one is a
# prediction that is too long.

Floats = NDArray[np.float64]

REGIMES = ("decode", "prefill", "mixed", "swap")
"""Steps that decode alone, compute prompts alone, do both; and all that move blocks to or from the host."""

CANARY, STALL = "canary", "stall"
"""Flags: beside a canary that had drifted; two executions that are further apart than `STALL_FACTOR`."""
STALL_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """One step of a lockstep. `digest` names the planned step (`simulator.lockstep.lockstep_run.digest`),
    `device_digest` the executed one.

    `again_s` is the same step in a second execution, NaN without one; `clock_s` its duration on the run's clock.
    `canary` is the time of a fixed piece of work beside the step, over its reference. `flag` says why the step is set
    aside: "canary" (the device had changed), "stall" (the two executions are far apart); empty for most. `sm_mhz` and
    `power_w` are the GPU's, NaN where it does not tell. `control` is the time of a fixed step of the same regime over
    what it was when the profile was measured (`simulator.lockstep.lockstep_run`), NaN where that is not known.
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


# Judges a lockstep: within its limits, not within them, or too noisy to tell.

FEWEST = 8  # steps that a regime must have to be judged by itself
MOST_FLAGGED = 0.1  # share of steps set aside (stalls, a drifting canary) beyond which the rest stands for nothing

Outcome = Literal["within", "not within", "cannot tell"]


@dataclass(frozen=True, slots=True)
class LockstepVerdict:
    """Pass, fail or unknown, with a sentence for each reason."""

    outcome: Outcome
    reasons: tuple[str, ...]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """How far predictions may be off, and how far two executions of the same steps may be apart (`floor`).

    `regime` bounds the drift of the busy time in each regime: a profile that is wrong in one of them shows there.
    `between` is how far the control of a regime may be from what it was when the profile was measured.
    """

    mape: float
    p95: float
    drift: float
    regime: float
    floor: float
    between: float

    def verdict(self, found: LockstepErrors) -> LockstepVerdict:
        """Within the limits; not within them; or the noise is beyond the floor, and nothing that it could not have
        done speaks against the prediction.

        A prediction never passes on noise: beyond the floor it fails where it is off by more than limit and noise
        together, and is otherwise not judged. Nor does it pass or fail on a device that has changed since the profile
        was measured: where controls tell, it passes only if it would with the times as they are and with those in ratio
        to the controls, within `between` of then, and fails only for what is wrong in both.
        """
        if not found.plans_equal:
            return LockstepVerdict("not within", ("the device did not execute what the simulator planned",))
        unsure = self._unsure(found)
        noise = (found.floor or 0.0) if unsure else 0.0
        drift_noise = (found.drift_floor or 0.0) if unsure else 0.0
        against = self._against(found, noise, drift_noise)
        if found.in_ratio is not None:
            other = self._against(found.in_ratio, noise, drift_noise)
            wrong = {what: said for what, said in against.items() if what in other}
            changed = {name: by for name, by in _controls(found).items() if abs(by) > self.between}
            if changed or not against.keys() == other.keys() == wrong.keys():
                unsure.append(_changed(changed or _controls(found)))
            against = wrong
        few = tuple(
            f"{name}: {each.steps} steps, too few to be judged by themselves"
            for name, each in found.regimes.items()
            if each.steps < FEWEST
        )
        if against:
            return LockstepVerdict("not within", tuple(against.values()), few)
        return LockstepVerdict("cannot tell", tuple(unsure), few) if unsure else LockstepVerdict("within", (), few)

    def _unsure(self, found: LockstepErrors) -> list[str]:
        """Why a prediction within its limits would prove nothing."""
        said = []
        if found.floor is None:
            said.append("everything was executed once only: how noisy the device is is not known")
        elif not found.floor <= self.floor:
            said.append(f"two executions of the same steps differ by {found.floor:.1%}, beyond {self.floor:.1%}")
        if found.flagged > MOST_FLAGGED * found.of:
            said.append(
                f"{found.flagged:,} of {found.of:,} steps were set aside ({found.stalled:,} stalls, "
                f"{found.flagged - found.stalled:,} beside a drifting canary)"
            )
        return said

    def _against(self, found: LockstepErrors, noise: float, drift_noise: float) -> dict[str, str]:
        """A sentence for each limit that is not kept, by what it is about and which way it is off."""
        said = {}
        for name, value, limit in (("MAPE", found.all.mape, self.mape), ("P95", found.all.p95, self.p95)):
            # A single step's noise reaches further than the mean of all.
            spare = noise if name == "MAPE" else 3.0 * noise
            if not value <= limit + spare:
                said[f"{name} {_direction(found.all)}"] = f"step {name} {value:.1%} is above {limit:.1%}"
        if not abs(found.drift) <= self.drift + drift_noise:
            said[f"drift {found.drift > 0}"] = f"drift {found.drift:+.1%} is beyond {self.drift:.1%}"
        for name, each in found.regimes.items():
            if each.steps >= FEWEST and not abs(each.drift) <= self.regime + drift_noise + _by_chance(each):
                said[f"{name} {each.drift > 0}"] = f"{name} steps drift by {each.drift:+.1%}, beyond {self.regime:.1%}"
        return said


def _controls(found: LockstepErrors) -> dict[str, float]:
    """How much longer the control of each regime takes than it did, of regimes that are judged by themselves."""
    judged = {name: each for name, each in found.regimes.items() if each.steps >= FEWEST} or found.regimes
    return {name: each.control for name, each in judged.items() if each.control is not None}


def _changed(controls: dict[str, float]) -> str:
    longer = ", ".join(f"{name} {by:+.1%}" for name, by in controls.items())
    return f"the device is not as it was when the profile was measured (fixed steps take {longer}): measure it again"


def _direction(errors: StepErrors) -> int:
    """1 if steps are mostly predicted too long, -1 if mostly too short, 0 if the errors go both ways."""
    return 0 if abs(errors.bias) < errors.mape / 2.0 else (1 if errors.bias > 0 else -1)


def _by_chance(regime: StepErrors) -> float:
    """How far noise alone takes the sum of so many steps: twice its standard error."""
    floor = 0.0 if regime.floor is None else regime.floor
    return float(2.0 * floor / regime.steps**0.5)


LIMITS = {"cuda": Limits(0.04, 0.12, 0.02, 0.04, 0.02, 0.02), "cpu": Limits(0.08, 0.20, 0.03, 0.06, 0.06, 0.04)}
"""By device. A CPU is shared with others; its times are ratios to a canary's (`gpu_backend.device`)."""


# The steps of a lockstep as a CSV file: a row a step, times in milliseconds.
#
# `clock_s`, the run's clock, is written to the last bit: played back, it must give the same plans.

_TIMES = ("predicted_s", "device_s", "host_s", "again_s")
_SEEN = ("canary", "flag", "sm_mhz", "power_w", "control")
COLUMNS = (
    "step",
    "digest",
    "device_digest",
    *COUNTS,
    "swapped_out_blocks",
    "swapped_in_blocks",
    *(name.removesuffix("_s") + "_ms" for name in _TIMES),
    "clock_s",
    *_SEEN,
)
_BEFORE = (COLUMNS[: -len(_SEEN)], COLUMNS[:-1])
"""Those of files from before devices had a canary, and controls: they are read too."""


def write_csv(path: Path, steps: Sequence[ComparedStep]) -> None:
    """Write the steps; a time that was not measured is an empty cell."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for index, step in enumerate(steps):
            times = [getattr(step, name) for name in _TIMES]
            cells = ["" if seconds != seconds else f"{seconds * 1e3:.6g}" for seconds in times]
            swapped = (step.swapped_out_blocks, step.swapped_in_blocks)
            seen = [_cell(step.canary), step.flag, _cell(step.sm_mhz), _cell(step.power_w)]
            seen.append(_cell(step.control))
            counts = [*step.shape[: len(COUNTS)], *swapped]
            rows.writerow([index, step.digest, step.device_digest, *counts, *cells, repr(step.clock_s), *seen])


def read_csv(path: Path) -> list[ComparedStep]:
    """The steps that `write_csv` wrote. Raises InputError for any other file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) not in (COLUMNS, *_BEFORE):
                hint = f"its columns are {', '.join(COLUMNS)}"
                raise InputError("not the steps of a lockstep", file=str(path), line=1, hint=hint)
            return [_step(row, path, number) for number, row in enumerate(rows, start=2)]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None


def _step(row: dict[str, str], path: Path, line: int) -> ComparedStep:
    try:
        times = {name: _seconds(row[name.removesuffix("_s") + "_ms"]) for name in _TIMES}
        return ComparedStep(
            digest=row["digest"],
            device_digest=row["device_digest"],
            shape=StepShape(*[int(row[name]) for name in COUNTS]),
            swapped_out_blocks=int(row["swapped_out_blocks"]),
            swapped_in_blocks=int(row["swapped_in_blocks"]),
            clock_s=float(row["clock_s"]),
            canary=float(row.get("canary") or 1.0),
            flag=row.get("flag") or "",
            sm_mhz=float(row.get("sm_mhz") or nan),
            power_w=float(row.get("power_w") or nan),
            control=float(row.get("control") or nan),
            **times,
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"not a step of a lockstep: {error}", file=str(path), line=line) from None


def _seconds(cell: str) -> float:
    return float(cell) / 1e3 if cell else nan


def _cell(value: float) -> str:
    return "" if value != value else f"{value:.6g}"
