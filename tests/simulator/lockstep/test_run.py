"""Lockstep of predictions with devices that are none: what is compared with what. Real ones: test_gpu_lockstep.py."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isnan
from typing import Any

import pytest

from scenarios.check.law_trial import differences
from simulator.lockstep.lockstep_run import (
    HELD,
    DeviceStep,
    LockstepCase,
    StepLog,
    device_clock,
    digest,
    predicted_clock,
    replayed,
)
from simulator.lockstep.step_errors import agreement
from simulator.memory.blocks import BlockManager
from simulator.memory.prefix_cache import PrefixCache
from simulator.timing.executor import ExecutorTraits, Predicted, Step
from simulator.timing.formula_cost import Linear
from tests.laws.scenarios import POLICIES, Memory, make_policy, make_workload

COST = Linear(1.0, 0.5, 0.25)
WORKLOAD = make_workload([0.0, 0.5, 0.6, 9.0], [(5, 7), (12, 3), (20, 6), (2, 9)])


def case(policy: str = "chunked_prefill", cost: Linear = COST, **options: Any) -> LockstepCase:
    return LockstepCase(
        WORKLOAD,
        lambda: make_policy(policy, 3, 16, **options),
        Memory(16, 4, 40),
        lambda: Predicted(cost, 0.125),
        BlockManager,
    )


@dataclass
class Fake:
    """A device that takes `factor` times what a cost model says, a little more each time it is made."""

    factor: float = 2.0
    wrong_at: int = -1
    measured: list[DeviceStep] = field(default_factory=list)
    answers: dict[int, list[int]] = field(default_factory=dict)
    traits = ExecutorTraits()

    def __post_init__(self) -> None:
        self._log = StepLog(Predicted(COST, 0.125))

    def execute(self, step: Step) -> float:
        seconds = self.factor * self._log.execute(step)
        named = "wrong" if len(self.measured) == self.wrong_at else self._log.steps[-1].digest
        self.measured.append(DeviceStep(named, seconds, 0.01))
        return seconds


@pytest.mark.parametrize("policy", POLICIES)
def test_the_device_plays_what_was_planned_alone(policy: str) -> None:
    steps = predicted_clock(case(policy), Fake)
    found = agreement(steps)
    assert found.plans_equal
    assert found.floor == 0.0
    assert found.all.mape == found.all.p95 == 0.5
    assert found.drift == -0.5
    plain = case(policy).run(case().make_predicted(), with_ids=False).records
    assert len(steps) == plain.rows.repeat[plain.rows.tokens > 0].sum()


def test_swapped_steps_are_a_regime() -> None:
    tight = replace(case("preemptive", preemption_mode="swap"), kv=Memory(9, 4, 40))
    assert "swap" in agreement(predicted_clock(tight, Fake)).regimes


def test_one_step_that_differs_is_found() -> None:
    steps = predicted_clock(case(), partial(Fake, wrong_at=4), again=False)
    assert [step.digest == step.device_digest for step in steps].count(False) == 1
    assert not agreement(steps).plans_equal
    assert agreement(steps).floor is None


def test_the_device_may_be_the_clock() -> None:
    steps, run = device_clock(case(), Fake)
    slow = case(cost=Linear(2.0, 1.0, 0.5))
    assert differences(run.records, slow.run(slow.make_predicted()).records) == []
    assert agreement(steps).plans_equal
    assert agreement(steps).all.bias == -0.5


def test_a_recorded_lockstep_is_played_back() -> None:
    recorded = predicted_clock(case(), Fake)
    again = replayed(case(), recorded)
    assert again == recorded, "today's plans and prices are those recorded"
    dearer = replayed(case(cost=Linear(4.0, 2.0, 1.0)), recorded)
    assert agreement(dearer).plans_equal, "the clock is that of the recording"
    assert agreement(dearer).all.bias == 1.0, "a wrong profile shows"
    other = replayed(case("continuous"), recorded)
    assert not agreement(other).plans_equal


def test_steps_that_the_device_lacks_have_nothing_beside_them() -> None:
    recorded = predicted_clock(case(), Fake)
    short = replayed(case(), recorded[:5])
    assert len(short) == len(recorded)
    assert isnan(short[-1].device_s)
    assert not agreement(short).plans_equal


def test_digests_name_rows_places_and_counts() -> None:
    one = digest([(0, 5), (1, 7)], [(2, 0, 16)], 0, 0)
    assert one == digest([(1, 7), (0, 5)], [(2, 0, 16)], 0, 0), "whatever the order"
    others = [
        digest([(0, 5), (1, 8)], [(2, 0, 16)], 0, 0),
        digest([(0, 5), (1, HELD)], [(2, 0, 16)], 0, 0),
        digest([(0, 5), (1, 7)], [(2, 0, 15)], 0, 0),
        digest([(0, 5), (1, 7)], [(2, 1, 16)], 0, 0),
        digest([(0, 5), (1, 7)], [(2, 0, 16)], 1, 0),
        digest([(0, 5), (1, 7)], [(2, 0, 16)], 0, 1),
    ]
    assert len({one, *others}) == 7


def test_log_changes_nothing() -> None:
    log = StepLog(Predicted(COST))
    plain: Sequence[Any] = differences(case().run(log).records, case().run(Predicted(COST)).records)
    assert plain == []
    assert sum(step.seconds for step in log.steps) > 0
    assert all(step.shape.decode_longest for step in log.steps if step.shape.decode_seqs), "spreads are kept"
    assert log.traits.outlook is log.inner.traits.outlook is not None


def test_a_shared_prefix_keeps_its_ids_in_the_plain_run() -> None:
    shared = LockstepCase(
        WORKLOAD,
        lambda: make_policy("chunked_prefill", 3, 16),
        Memory(16, 4),
        lambda: Predicted(COST),
        partial(PrefixCache, block_size=4),
        caches_prefixes=True,
    )
    assert agreement(predicted_clock(shared, Fake)).plans_equal
