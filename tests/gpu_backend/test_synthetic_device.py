"""From rows to a verdict on a device that is known: a right profile passes, a wrong one fails and is named for where it
is wrong, stalls and drift are set aside and told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from calibration.fit import write_document
from calibration.own_steps import fit_steps
from calibration.rows import read_rows
from gpu_backend.executor import DeviceExecutor
from gpu_backend.probes import Grid
from gpu_backend.session import ROWS, Measurements, profile, write_profile
from scenarios.validate.lockstep_case import profile_canary
from simulator.errors import InputError
from simulator.hardware.kv import KVCache
from simulator.lockstep.lockstep_run import Canary, LockstepCase, predicted_clock
from simulator.lockstep.step_errors import LIMITS, REGIMES, ComparedStep, LockstepErrors, LockstepVerdict, agreement
from simulator.memory.blocks import BlockManager
from simulator.policies import load_policy
from simulator.timing.executor import Executor, Predicted
from simulator.timing.profile import ProfileCost, read_profile
from simulator.workload import Workload
from tests.gpu_backend.synthetic import NOISE, SWAP_US, SyntheticBackend, SyntheticGpu

GRID = Grid(64, 1024, 512)
HEADER = {"device": "cuda", "gpu": "h200", "model": "synthetic", "dtype": "float32"}


def measured(gpu: SyntheticGpu, folder: Path) -> Measurements:
    found = profile(SyntheticBackend(gpu), GRID, kernels=False)
    write_profile(folder, found, HEADER)
    return found


def fitted(folder: Path) -> ProfileCost:
    document = fit_steps(read_rows(folder / ROWS), "synthetic").document
    assert document is not None
    write_document(document, folder / "profile.json")
    return ProfileCost(read_profile(folder / "profile.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of a steady device."""
    folder = tmp_path_factory.mktemp("steady")
    measured(SyntheticGpu(), folder)
    return folder


@pytest.fixture(scope="module")
def cost(folder: Path) -> ProfileCost:
    return fitted(folder)


@pytest.fixture(scope="module")
def then(folder: Path, cost: ProfileCost) -> Canary:
    found = profile_canary(folder / "profile.json")
    assert found is not None
    return found


def requests() -> Workload:
    random = np.random.default_rng(4)
    count = 120
    arrival = np.cumsum(random.exponential(0.008, count))
    inputs, outputs = random.integers(10, 600, count), random.integers(5, 120, count)
    nought = np.zeros(count, dtype=np.int64)
    return Workload(arrival - arrival[0], inputs, outputs, np.full(count, 120), nought, nought)


CASES = {  # what makes each regime: chunks beside decodes, prompts alone, too few pages
    "chunked_prefill": (900, {}),
    "vllm_v0": (400, {"preemption_mode": "swap"}),
}
MakeGpu = Callable[[], SyntheticGpu]


def executed(
    cost: ProfileCost, make_gpu: MakeGpu, *, warm: bool = True, then: Canary | None = None
) -> list[ComparedStep]:
    """Both cases in lockstep with the device; `then` is what the profile was measured beside."""
    steps: list[ComparedStep] = []
    for policy, (blocks, given) in CASES.items():
        backend = SyntheticBackend(make_gpu())
        if warm:
            backend.warm_up(64, 512)
        began = backend.device.check() if then else 1.0
        limits = {"max_num_seqs": 64, "max_num_batched_tokens": 512, **given}

        def predicted() -> Executor:
            return Predicted(cost, SWAP_US * 1e-6)

        case = LockstepCase(
            requests(),
            lambda policy=policy, limits=limits: load_policy(policy, limits),  # type: ignore[misc] # not inferred
            KVCache(blocks, 16, 256, 1),
            predicted,
            BlockManager,
        )
        steps += predicted_clock(case, partial(DeviceExecutor, backend, then=then, began=began))
    return steps


@pytest.fixture(scope="module")
def steady(cost: ProfileCost, then: Canary) -> list[ComparedStep]:
    return executed(cost, lambda: SyntheticGpu(1), then=then)


@pytest.fixture(scope="module")
def slower(cost: ProfileCost, then: Canary) -> list[ComparedStep]:
    """On a device that has become 4 % slower as a whole since the profile was measured."""
    return executed(cost, lambda: SyntheticGpu(1, speed=lambda at_s: 1.04), then=then)


def judged(steps: list[ComparedStep]) -> tuple[LockstepErrors, LockstepVerdict]:
    found = agreement(steps)
    return found, LIMITS["cuda"].verdict(found)


def test_a_right_profile_passes_within_the_noise(steady: list[ComparedStep]) -> None:
    found, verdict = judged(steady)
    assert verdict.outcome == "within", verdict.reasons
    assert set(found.regimes) == set(REGIMES)
    assert all(each.steps >= 8 for each in found.regimes.values()), "each is judged"
    assert found.floor is not None
    assert found.floor == pytest.approx(NOISE * np.sqrt(2) * np.sqrt(2 / np.pi), rel=0.1), "the noise is known"
    assert found.all.mape <= 1.2 * found.floor
    assert abs(found.drift) < 0.01
    assert (found.flagged, steady[0].sm_mhz) == (0, 1980.0)
    assert all(abs(each.control or nan) < NOISE for each in found.regimes.values()), "the same device as then"


def test_a_device_that_has_become_slower_is_no_failure(slower: list[ComparedStep]) -> None:
    found, verdict = judged(slower)
    assert verdict.outcome == "cannot tell"
    assert "fixed steps take decode +4." in verdict.reasons[0]
    assert found.flagged == 0
    assert found.canary == pytest.approx(0.04, abs=0.005)
    assert found.in_ratio is not None
    assert abs(found.in_ratio.drift) < 0.01 < 0.03 < -found.drift


def test_steps_that_are_slower_beside_the_same_canary_fail(steady: list[ComparedStep]) -> None:
    slow = [replace(step, device_s=1.1 * step.device_s, again_s=1.1 * step.again_s) for step in steady]
    assert judged(slow)[1].outcome == "not within", "the device has not changed: it is the profile that is wrong"


@pytest.mark.parametrize("factor", [0.9, 1.1])
@pytest.mark.parametrize("regime", [*REGIMES, "all"])
@pytest.mark.parametrize("device", ["steady", "slower"])
def test_a_profile_wrong_in_one_regime_fails_by_its_name(
    device: str, regime: str, factor: float, request: pytest.FixtureRequest
) -> None:
    executed: list[ComparedStep] = request.getfixturevalue(device)
    off = [
        replace(step, predicted_s=factor * step.predicted_s) if regime in (step.regime, "all") else step
        for step in executed
    ]
    _, verdict = judged(off)
    assert verdict.outcome == "not within"
    named = [reason.partition(" steps drift")[0] for reason in verdict.reasons if " steps drift" in reason]
    assert named == (list(REGIMES) if regime == "all" else [regime])


def test_stalls_are_flagged_and_not_averaged_in(cost: ProfileCost, steady: list[ComparedStep]) -> None:
    """A backend that was not warmed up compiles inside its first steps."""
    stalled = executed(cost, lambda: SyntheticGpu(1, stall_s=2.0), warm=False)
    found, verdict = judged(stalled)
    kinds = [step.regime for step in stalled if step.flag == "stall"]
    assert 3 <= found.stalled == found.flagged == len(kinds) <= 6
    assert {"prefill", "decode", "mixed"} <= set(kinds)
    assert verdict.outcome == "within", verdict.reasons
    assert found.all.mape == pytest.approx(agreement(steady).all.mape, rel=0.2)
    averaged = agreement([replace(step, flag="") for step in stalled])
    assert averaged.all.mape > 2 * found.all.mape or abs(averaged.drift) > 0.1, "they would have counted"


def test_a_warm_backend_does_not_stall(cost: ProfileCost) -> None:
    found, verdict = judged(executed(cost, lambda: SyntheticGpu(1, stall_s=2.0)))
    assert (found.stalled, verdict.outcome) == (0, "within")


def test_a_clock_that_drifts_is_no_ground_for_a_verdict(cost: ProfileCost) -> None:
    """From some moment on all takes 6 % longer, and never comes back."""
    found, verdict = judged(executed(cost, lambda: SyntheticGpu(1, speed=lambda at_s: 1.06 if at_s > 2.0 else 1.0)))
    assert verdict.outcome == "cannot tell"
    assert "beside a drifting canary" in " ".join(verdict.reasons)
    assert found.flagged > 100
    assert found.all.mape < 0.02, "what is left is what was steady"


def test_a_short_drift_is_set_aside(cost: ProfileCost) -> None:
    found, verdict = judged(
        executed(cost, lambda: SyntheticGpu(1, speed=lambda at_s: 1.08 if 1.0 < at_s < 1.1 else 1.0))
    )
    assert 0 < found.flagged < 0.1 * found.of
    assert verdict.outcome == "within", verdict.reasons


def test_rows_beside_a_drifting_clock_do_not_reach_the_fit(cost: ProfileCost, tmp_path: Path) -> None:
    """A third of the session is slow: those readings do not count, and the profile is that of a steady device."""
    total = SyntheticGpu()
    profile(SyntheticBackend(total), GRID, kernels=False)
    end_s = total.busy_s
    found = measured(SyntheticGpu(speed=lambda at_s: 1.3 if 0.4 < at_s / end_s < 0.7 else 1.0), tmp_path)
    assert found.drift > 0.25
    assert found.flagged < len(found.rows) / 4
    other = fitted(tmp_path)
    shapes = [step.shape for step in executed(cost, lambda: SyntheticGpu(1))[::50]]
    assert [other.step_s(shape) for shape in shapes] == pytest.approx([cost.step_s(s) for s in shapes], rel=0.03)


def test_a_session_that_drifts_throughout_is_refused(tmp_path: Path) -> None:
    found = measured(SyntheticGpu(speed=lambda at_s: 1.2), tmp_path)
    assert found.flagged == len(found.rows), "they are kept"
    with pytest.raises(InputError, match="the device changed while it was measured"):
        fitted(tmp_path)
