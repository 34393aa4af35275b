"""A lockstep inside a campaign: bounded by time, every step on disk as it comes."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from simulator.lockstep.lockstep_run import (
    DeviceStep,
    LockstepCase,
    MakeDevice,
    MeasuringExecutor,
    StepLog,
    compare_steps,
)
from simulator.lockstep.step_errors import LIMITS, ComparedStep, agreement, write_csv
from simulator.memory.blocks import BlockManager
from simulator.policies import load_policy
from simulator.simulate import KVMemory
from simulator.timing.executor import Executor, ExecutorTraits, Lockstep, Step
from simulator.workload import Floats, Ints, Workload
from tools.campaign.job import Load, Section, Setting

# Requests to validate with where no trace is at hand: lengths and gaps as two published traces have them.
#
# Drawn from the traces' quantiles, not copied from them; lengths are independent of each other, as they nearly are
# there (correlation -0.11 and 0.07).

_PERCENTILES = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Quantiles of prompts and answers, requests a second, and the variation of the gaps (of gamma distribution)."""

    source: str
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    rate: float
    variation: float

    def requests(self, count: int, seed: int = 0, *, longest: int | None = None, rate: float | None = None) -> Workload:
        """So many requests; prompts and answers scaled down where their largest together would be over `longest`."""
        random = np.random.default_rng(seed)
        lengths = [self._drawn(table, random, count) for table in (self.input_tokens, self.output_tokens)]
        most = self.input_tokens[-1] + self.output_tokens[-1]
        share = 1.0 if longest is None else min(1.0, longest / most)
        inputs, outputs = (np.maximum(1, (drawn * share).astype(np.int64)) for drawn in lengths)
        shape = 1 / self.variation**2
        gaps = random.gamma(shape, 1 / (shape * (rate or self.rate)), count)
        return _workload(np.cumsum(gaps) - gaps[0], inputs, outputs)

    @staticmethod
    def _drawn(table: tuple[int, ...], random: np.random.Generator, count: int) -> Floats:
        """Between the quantiles, lengths are spread evenly on a logarithmic scale."""
        return np.exp(np.interp(random.uniform(0, 100, count), _PERCENTILES, np.log(table)))


TRAFFIC = {
    "azure-chat": Traffic(
        "Azure LLM inference trace 2023, conversation (Patel et al., Splitwise, ISCA 2024): 19,366 requests",
        (2, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050),
        (7, 41, 54, 85, 129, 395, 424, 451, 601, 1000),
        5.53,
        1.09,
    ),
    "long-context": Traffic(
        "Mooncake conversation trace (Qin et al., FAST 2025): 12,031 requests",
        (891, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 126195),
        (1, 10, 24, 156, 350, 472, 597, 698, 1118, 2000),
        3.40,
        3.03,
    ),
}


def _workload(arrival_s: Floats, input_tokens: Ints, output_tokens: Ints) -> Workload:
    count = len(arrival_s)
    nought = np.zeros(count, dtype=np.int64)
    cap = np.full(count, int(output_tokens.max()), dtype=np.int64)
    return Workload(arrival_s, input_tokens, output_tokens, cap, nought, nought)


# The lockstep.


class TimeUp(Exception):  # noqa: N818 - no error: the steps so far count
    """There is no time for another step."""


class Recorded:
    """A device whose every step goes to a file at once, and which stops when its part has so few seconds left."""

    def __init__(self, device: MeasuringExecutor, section: Section, file: IO[str], stop_at_s: float) -> None:
        self._device, self._section, self._file, self._stop_at_s = device, section, file, stop_at_s

    @property
    def traits(self) -> ExecutorTraits:
        return self._device.traits

    @property
    def measured(self) -> Sequence[DeviceStep]:
        return self._device.measured

    @property
    def answers(self) -> Mapping[int, Sequence[int]]:
        return self._device.answers

    def execute(self, step: Step) -> float:
        if self._section.left_s < self._stop_at_s:
            raise TimeUp
        seconds = self._device.execute(step)
        self._file.write(json.dumps(self._device.measured[-1]) + "\n")
        self._file.flush()
        return seconds


def serve_twice(
    setting: Setting,
    load: Load,
    make_device: MakeDevice,
    predicted: Callable[[], Executor],
    out: Path,
    section: Section,
    share_s: float,
) -> list[ComparedStep]:
    """Execute the load's plans twice within its share of the time, and write the steps.

    The first execution leaves half for the second; the steps that both have are compared.
    """
    case = _case(setting, load, predicted)
    alone = StepLog(predicted())
    case.run(alone, with_ids=False)
    measured: list[Sequence[DeviceStep]] = []
    left_s = section.left_s
    for number in (1, 2):
        with (out / f"steps-{load.name}-{number}.jsonl").open("w", encoding="utf-8") as file:
            recorded = Recorded(make_device(), section, file, left_s - share_s * number / 2)
            with suppress(TimeUp):
                case.run(Lockstep(clock=predicted(), shadow=recorded))
            measured.append(recorded.measured)
    first, second = measured
    planned = len(alone.steps)
    most = planned if len(first) == len(second) == planned else min(len(first), len(second))
    steps = compare_steps(alone.steps[:most], first[:most], second[:most])
    write_csv(out / f"lockstep-{load.name}.csv", steps)
    return steps


def _case(setting: Setting, load: Load, predicted: Callable[[], Executor]) -> LockstepCase:
    blocks = setting.kv.num_gpu_blocks if load.blocks is None else min(load.blocks, setting.kv.num_gpu_blocks)
    kv: KVMemory = replace(setting.kv, num_gpu_blocks=blocks)
    longest = min(load.longest or setting.longest, _tokens(kv))
    requests = TRAFFIC[load.traffic].requests(load.requests, longest=longest, rate=load.rate)
    return LockstepCase(requests, lambda: load_policy(load.policy, load.given), kv, predicted, BlockManager)


def _tokens(kv: KVMemory) -> int:
    return (kv.num_gpu_blocks - 1) * kv.block_size


def told(steps: Sequence[ComparedStep], device: str) -> dict[str, Any]:
    """The results of the steps, as JSON."""
    if not steps:
        return {"steps": 0, "words": "no time for a step"}
    found = agreement(steps)
    verdict = LIMITS[device].verdict(found)
    floor = "-" if found.floor is None else f"{found.floor:.1%}"
    words = f"{found.all.steps} steps, MAPE {found.all.mape:.1%}, noise {floor}, drift {found.drift:+.1%}"
    return {
        "steps": found.all.steps,
        "plans_equal": found.plans_equal,
        "step_mape": found.all.mape,
        "step_p95": found.all.p95,
        "drift": found.drift,
        "noise_floor_mape": found.floor,
        "flagged": found.flagged,
        "stalled": found.stalled,
        "largest_batch": max(step.shape.decode_seqs for step in steps),
        "regimes": {
            name: {"steps": each.steps, "step_mape": each.mape, "drift": each.drift}
            for name, each in found.regimes.items()
        },
        "verdict": verdict.outcome,
        "reasons": list(verdict.reasons),
        "words": f"{words}: {verdict.outcome}",
    }
