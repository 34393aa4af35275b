"""One run of plans, both priced and executed: predicted against measured, step by step, beside a canary."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from statistics import median, quantiles
from typing import Any, NamedTuple, Protocol

from simulator.lockstep.step_errors import CANARY, STALL, STALL_FACTOR, ComparedStep
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.plan import Policy
from simulator.request_state import FINISHED
from simulator.simulate import KVMemory, Run, simulate
from simulator.timing.cost import CostModel, StepShape
from simulator.timing.executor import Executor, ExecutorTraits, Lockstep, Replay, Step
from simulator.workload import Workload

# One run of plans, both priced and executed: predicted against measured, step by step.
#
# Exactly one side is the clock. With the predicted side, the plans are those of an ordinary run, and the device
# says how long each of them really takes: the pure error of the cost model. With the device as the clock, the plans
# are those of a real server, and the prediction runs beside it.

HELD = -1  # stands for the KV tokens of a finished request that computes on in its slot: their number means nothing


def digest(
    decodes: Sequence[tuple[int, int]],
    chunks: Sequence[tuple[int, int, int]],
    swapped_out_blocks: int,
    swapped_in_blocks: int,
) -> str:
    """16 hexadecimal digits that name what a step does.

    `decodes` are (row, KV tokens before the step), with `HELD` for those that have finished; `chunks` are (row, KV
    tokens before, tokens to compute). Their order does not matter.
    """
    text = repr((sorted(decodes), sorted(chunks), swapped_out_blocks, swapped_in_blocks))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One step: what it did and how long it took."""

    digest: str
    shape: StepShape
    swapped_out_blocks: int
    swapped_in_blocks: int
    seconds: float


@dataclass(slots=True)
class StepLog:
    """An executor that passes every step on and keeps what it did."""

    inner: Executor
    steps: list[LoggedStep] = field(default_factory=list)

    @property
    def traits(self) -> ExecutorTraits:
        """The inner executor's traits, but steps come one at a time, with all of their counts."""
        return replace(self.inner.traits, decode_run_s=None, wants_context_stats=True)

    def execute(self, step: Step) -> float:
        named = _digest(step)
        seconds = self.inner.execute(step)
        out, back = step.swapped_out_blocks, step.swapped_in_blocks
        self.steps.append(LoggedStep(named, step.shape, out, back, seconds))
        return seconds


def _digest(step: Step) -> str:
    decodes = [(live.row, HELD if live.status is FINISHED else live.num_computed_tokens) for live in step.decoders]
    chunks = [(live.row, live.base_computed, tokens) for live, tokens, _ in step.prefill if tokens]
    return digest(decodes, chunks, step.swapped_out_blocks, step.swapped_in_blocks)


class DeviceStep(NamedTuple):
    """A step on the device: what was executed (`step_log.digest`), its device time, and the host time beside it.

    `canary` is the canary's time over its reference, `is_steady` whether it is near enough for the step to count;
    `sm_mhz` and `power_w` are the GPU's, where it tells them. `control` is as `ComparedStep` has it.
    """

    digest: str
    device_s: float
    host_s: float
    canary: float = 1.0
    is_steady: bool = True
    sm_mhz: float = nan
    power_w: float = nan
    control: float = nan


class MeasuringExecutor(Executor, Protocol):
    """An executor that keeps what it measured."""

    @property
    def measured(self) -> Sequence[DeviceStep]:
        """One entry a step."""

    @property
    def answers(self) -> Mapping[int, Sequence[int]]:
        """The tokens that each request was answered with, by row."""


@dataclass(frozen=True, slots=True)
class LockstepCase:
    """A simulation of one replica, and how its steps are priced.

    `make_blocks` gives blocks with ids, which are those of the device's pages.
    """

    workload: Workload
    make_policy: Callable[[], Policy]
    kv: KVMemory
    make_predicted: Callable[[], Executor]
    make_blocks: Callable[[int, int], KVBlocks]
    caches_prefixes: bool = False  # the run without a device then needs block ids too, as counts do not suffice

    def run(self, executor: Executor, *, with_ids: bool = True, progress: Callable[[int], None] | None = None) -> Run:
        """Serve the workload with this executor, one step at a time."""
        return simulate(
            self.workload,
            make_policy=self.make_policy,
            kv=self.kv,
            make_executor=lambda: executor,
            make_blocks=self.make_blocks if with_ids or self.caches_prefixes else BlockLedger,
            fast_forward=False,
            progress=progress,
        )


MakeDevice = Callable[[], MeasuringExecutor]


def predicted_clock(
    case: LockstepCase, make_device: MakeDevice, *, again: bool = True, progress: Callable[[int], None] | None = None
) -> list[ComparedStep]:
    """Lockstep with the predicted side as the clock; `again` executes everything a second time, for the noise floor.

    What was planned is taken from a run of its own, without the device.
    """
    alone = StepLog(case.make_predicted())
    case.run(alone, with_ids=False)
    devices = [make_device() for _ in range(2 if again else 1)]
    for device in devices:
        case.run(Lockstep(clock=case.make_predicted(), shadow=device), progress=progress)
    return compare_steps(alone.steps, devices[0].measured, devices[1].measured if again else None)


def device_clock(
    case: LockstepCase, make_device: MakeDevice, *, again: bool = True, progress: Callable[[int], None] | None = None
) -> tuple[list[ComparedStep], Run]:
    """Lockstep with the device as the clock, and that run; the second time its own durations are played back."""
    device, predicted = make_device(), StepLog(case.make_predicted())
    run = case.run(Lockstep(clock=device, shadow=predicted), progress=progress)
    second = None
    if again:
        other = make_device()
        clock = Replay([step.device_s for step in device.measured])
        case.run(Lockstep(clock=clock, shadow=other), progress=progress)
        second = other.measured
    ticked = [step.device_s for step in device.measured if step.digest != _IDLE]
    return compare_steps(predicted.steps, device.measured, second, ticked), run


def replayed(case: LockstepCase, recorded: Sequence[ComparedStep]) -> list[ComparedStep]:
    """Lockstep of today's plans and predictions with a device's recorded steps, on the clock of the recording.

    The digests show a plan that differs from the recorded one; later steps may differ as a consequence.
    """
    today = StepLog(case.make_predicted())
    case.run(Lockstep(clock=_Recorded(recorded), shadow=today), with_ids=False)
    measured = [DeviceStep(step.device_digest, is_steady=step.flag != CANARY, **_measured(step)) for step in recorded]
    again = [DeviceStep(step.device_digest, step.again_s, nan) for step in recorded]
    return compare_steps(today.steps, measured, again, [step.clock_s for step in recorded])


def repriced(recorded: Sequence[ComparedStep], cost: CostModel, swap_s_per_block: float) -> list[ComparedStep]:
    """The recorded steps with the prices of another cost model; nothing is planned."""
    return [
        replace(
            step,
            predicted_s=cost.step_s(step.shape) + swap_s_per_block * (step.swapped_out_blocks + step.swapped_in_blocks),
        )
        for step in recorded
    ]


class _Recorded:
    """The clock of a recorded lockstep: steps without anything to do are not in it, and take no time."""

    traits = ExecutorTraits()

    def __init__(self, recorded: Sequence[ComparedStep]) -> None:
        self._replay = Replay([*(step.clock_s for step in recorded)])
        self._left = len(recorded)

    def execute(self, step: Step) -> float:
        if not (step.shape.tokens or step.swapped_out_blocks or step.swapped_in_blocks):
            return 0.0
        self._left -= 1
        return self._replay.execute(step) if self._left >= 0 else 1.0  # beyond the recording, digests differ anyway


def compare_steps(
    logged: Sequence[LoggedStep],
    measured: Sequence[DeviceStep],
    again: Sequence[DeviceStep] | None = None,
    clock_s: Sequence[float] | None = None,
) -> list[ComparedStep]:
    """Planned and executed steps side by side, without empty steps.

    The clock is the predicted one unless `clock_s` is given. Where one side has more steps than the other, the other's
    entries are an empty digest and NaN seconds.
    """
    planned = [step for step in logged if step.digest != _IDLE]
    done = [step for step in measured if step.digest != _IDLE]
    second = [step for step in again or () if step.digest != _IDLE]
    count = max(len(planned), len(done))
    planned += [_NOT_PLANNED] * (count - len(planned))
    done += [_NOT_MEASURED] * (count - len(done))
    second += [_NOT_MEASURED] * (count - len(second))
    clock = [*(clock_s if clock_s is not None else [plan.seconds for plan in planned])]
    clock += [nan] * (count - len(clock))
    return [
        ComparedStep(
            digest=plan.digest,
            device_digest=step.digest,
            shape=plan.shape,
            swapped_out_blocks=plan.swapped_out_blocks,
            swapped_in_blocks=plan.swapped_in_blocks,
            predicted_s=plan.seconds,
            again_s=other.device_s,
            clock_s=ticked_s,
            flag=_flag(step, other),
            **_measured(step),
        )
        for plan, step, other, ticked_s in zip(planned, done, second, clock, strict=False)
    ]


def _measured(step: DeviceStep | ComparedStep) -> dict[str, float]:
    """The figures that a device's step has, and a compared one too, by name."""
    names = ("device_s", "host_s", "canary", "sm_mhz", "power_w", "control")
    return {name: getattr(step, name) for name in names}


def _flag(one: DeviceStep, other: DeviceStep) -> str:
    """Why a step is set aside, if it is."""
    if not (one.is_steady and other.is_steady):
        return CANARY
    low, high = sorted((one.device_s, other.device_s))
    return STALL if high > STALL_FACTOR * low else ""  # False where one is NaN


_IDLE = digest((), (), 0, 0)
_NOT_PLANNED = LoggedStep("", StepShape(0, 0), 0, 0, nan)
_NOT_MEASURED = DeviceStep("", nan, nan)


# The canary and the controls of a profile, carried into the lockstep that judges it.
#
# Times are comparable between two processes only as far as the device is the same in both. The *canary* says how
# fast it is; where times are ratios to the canary's, as on a CPU, a device that is slower as a whole does not
# matter. What does not cancel out (a neighbour that takes memory bandwidth slows decodes more than prompts) shows
# in the *controls*: fixed steps, one for each regime, timed in the same terms in both processes. Neither is ever
# fitted, so that no profile, right or wrong, moves them.


class ControlStep(NamedTuple):
    """A fixed step: `decodes` requests of `context` KV tokens, and a prompt chunk of `chunk` tokens."""

    decodes: int
    context: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Readings:
    """Repeated timings summed up: their median, and how far the middle half of them spreads, as a fraction of it."""

    median: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Readings:
        """Summarise the values, of which there is at least one."""
        middle = median(values)
        if len(values) < 2:
            return cls(middle, 0.0)
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, (high - low) / middle)


@dataclass(frozen=True, slots=True)
class Canary:
    """A canary as a profile has it: what it was (`of`), and the seconds in whose terms the profile's times are.

    `seen` are its times while the profile was measured, over that reference. `controls` are the fixed steps by regime,
    with their seconds.
    """

    of: str
    reference_s: float
    seen: Readings = Readings(1.0, 0.0)
    controls: Mapping[str, tuple[ControlStep, Readings]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As profiles and measured.json have it, in microseconds."""
        return {
            "us": round(self.reference_s * 1e6, 2),
            "of": self.of,
            "seen": {"median": round(self.seen.median, 4), "spread": round(self.seen.spread, 4)},
            "controls": {
                name: {**step._asdict(), "us": round(took.median * 1e6, 2), "spread": round(took.spread, 4)}
                for name, (step, took) in self.controls.items()
            },
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Canary:
        """Read what `to_json` wrote; KeyError, TypeError or ValueError for anything else. Older ones lack controls."""
        seen = found.get("seen", {"median": 1.0, "spread": 0.0})
        controls = {
            str(name): (
                ControlStep(*[int(each[key]) for key in ControlStep._fields]),
                Readings(float(each["us"]) * 1e-6, float(each["spread"])),
            )
            for name, each in found.get("controls", {}).items()
        }
        seen_then = Readings(float(seen["median"]), float(seen["spread"]))
        return cls(str(found["of"]), float(found["us"]) * 1e-6, seen_then, controls)
