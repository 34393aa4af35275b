"""Predicted against measured step times, summed up; and the file that holds them."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.lockstep.csv import COLUMNS, read_csv, write_csv
from simulator.lockstep.step_errors import (
    LIMITS,
    ComparedStep,
    Limits,
    LockstepErrors,
    StepErrors,
    agreement,
    drift_curve,
    errors,
)
from simulator.timing.cost import StepShape

DECODE, PROMPT = StepShape(4, 400), StepShape(0, 0, 1, 32, 32, 528)
BOTH = StepShape(4, 400, 1, 32, 32, 528)


def step(
    shape: StepShape = DECODE, predicted: float = 1.0, device: float = 1.0, again: float = nan, swapped: int = 0
) -> ComparedStep:
    return ComparedStep("a", "a", shape, 0, swapped, predicted, device, 0.1, again, predicted)


STEPS = [
    step(DECODE, 1.1, 1.0, 1.0),
    step(DECODE, 0.9, 1.0, 1.2),
    step(PROMPT, 3.0, 2.0, 2.0),
    step(BOTH, 4.0, 4.0, 4.0),
    step(DECODE, 0.5, 1.0, 1.0, swapped=3),
]


def test_errors_by_hand() -> None:
    found = agreement(STEPS)
    assert errors(STEPS) == pytest.approx([0.1, -0.1, 0.5, 0.0, -0.5])
    assert found.all.steps == 5
    assert found.all.mape == pytest.approx(0.24)
    assert found.all.median == pytest.approx(0.1)
    assert found.all.p95 == pytest.approx(0.5)
    assert found.all.bias == pytest.approx(0.0)
    assert found.floor == pytest.approx(0.04)
    assert found.drift == pytest.approx(9.5 / 9.0 - 1)
    assert list(found.regimes) == ["decode", "prefill", "mixed", "swap"]
    assert [each.steps for each in found.regimes.values()] == [2, 1, 1, 1]
    assert found.regimes["swap"].bias == pytest.approx(-0.5)


def test_drift_is_of_the_sums() -> None:
    assert drift_curve(STEPS) == pytest.approx([0.1, 0.0, 0.25, 0.125, 9.5 / 9.0 - 1])


def test_without_a_second_replay_there_is_no_floor() -> None:
    assert agreement([step(), step(again=1.0)]).floor is None


def test_plans_that_differ_are_told_and_not_measured() -> None:
    other = ComparedStep("a", "b", DECODE, 0, 0, 1.0, 1.0, 0.1, nan, 1.0)
    missing = ComparedStep("a", "", DECODE, 0, 0, 1.0, nan, nan, nan, 1.0)
    assert agreement([step()]).plans_equal
    assert not agreement([step(), other]).plans_equal
    found = agreement([step(), missing])
    assert (found.plans_equal, found.all.steps, found.all.mape) == (False, 1, 0.0)
    assert LIMITS["cpu"].failures(found) == ["the device did not execute what the simulator planned"]


def test_no_step_is_no_lockstep() -> None:
    with pytest.raises(ValueError, match="without a step"):
        agreement([])


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(0.25, None, 0.1, 0.0), []),
        (Limits(0.23, None, 0.1, 0.0), ["step MAPE 24.0% is above 23.0%"]),
        (Limits(0.1, None, 0.1, 6.5), []),  # 6.5 times the floor of 4 %
        (Limits(0.1, None, 0.1, 5.5), ["step MAPE 24.0% is above 22.0%"]),
        (Limits(inf, 0.4, 0.1, 0.0), ["step P95 50.0% is above 40.0%"]),
        (Limits(inf, None, 0.05, 0.0), ["drift +5.6% is beyond 5.0%"]),
    ],
)
def test_limits(limits: Limits, said: list[str]) -> None:
    assert limits.failures(agreement(STEPS)) == said


def test_nothing_measured_is_not_within_limits() -> None:
    nothing = StepErrors(1, nan, nan, nan, nan)
    bad = LockstepErrors(plans_equal=True, all=nothing, regimes={}, floor=None, drift=nan)
    assert len(LIMITS["cuda"].failures(bad)) == 3


def test_steps_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    write_csv(path, STEPS)
    again = read_csv(path)
    assert [one.shape for one in again] == [one.shape for one in STEPS]
    assert [one.digest for one in again] == [one.digest for one in STEPS]
    assert np.allclose([one.device_s for one in again], [one.device_s for one in STEPS])
    assert again[4].swapped_in_blocks == 3
    write_csv(tmp_path / "again.csv", again)
    assert path.read_bytes() == (tmp_path / "again.csv").read_bytes()


def test_a_time_not_taken_is_an_empty_cell(tmp_path: Path) -> None:
    write_csv(tmp_path / "steps.csv", [step()])
    assert (tmp_path / "steps.csv").read_text().endswith(",100,,1.0\n")
    assert np.isnan(read_csv(tmp_path / "steps.csv")[0].again_s)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "not the steps of a lockstep"),
        (",".join(COLUMNS) + "\n" + ",".join("x" for _ in COLUMNS) + "\n", r"steps.csv:2: not a step"),
        ("", "not the steps of a lockstep"),
    ],
)
def test_other_files_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_csv(tmp_path / "steps.csv")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_csv(tmp_path / "none.csv")
