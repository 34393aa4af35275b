"""Judges a lockstep: within its limits, not within them, or too noisy to tell."""

from dataclasses import dataclass
from typing import Literal

from simulator.lockstep.step_errors import LockstepErrors, StepErrors

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
