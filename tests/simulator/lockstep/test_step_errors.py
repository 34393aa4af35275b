"""Predicted against measured step times, summed up; and the file that holds them."""

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.lockstep.step_errors import (
    CANARY,
    COLUMNS,
    LIMITS,
    STALL,
    ComparedStep,
    Limits,
    LockstepErrors,
    StepErrors,
    agreement,
    drift_curve,
    errors,
    read_csv,
    write_csv,
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
    verdict = LIMITS["cpu"].verdict(found)
    assert (verdict.outcome, len(verdict.reasons)) == ("not within", 1)
    assert verdict.reasons[0] == "the device did not execute what the simulator planned"


def test_no_step_is_no_lockstep() -> None:
    with pytest.raises(ValueError, match="without a step"):
        agreement([])


WIDE = Limits(inf, inf, inf, inf, inf, inf)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (replace(WIDE, mape=0.25), []),
        (replace(WIDE, mape=0.23), ["step MAPE 24.0% is above 23.0%"]),
        (replace(WIDE, p95=0.4), ["step P95 50.0% is above 40.0%"]),
        (replace(WIDE, drift=0.05), ["drift +5.6% is beyond 5.0%"]),
    ],
)
def test_limits(limits: Limits, said: list[str]) -> None:
    verdict = limits.verdict(agreement(STEPS))
    assert list(verdict.reasons) == said
    assert verdict.outcome == ("not within" if said else "within")
    assert [remark.partition(":")[0] for remark in verdict.remarks] == ["decode", "prefill", "mixed", "swap"]


def many(predicted: float, apart: float, count: int = 40, shape: StepShape = DECODE) -> list[ComparedStep]:
    """Steps of which two executions differ by `apart`, one way and the other."""
    return [step(shape, predicted, 1.0, 1.0 + apart * (-1) ** index) for index in range(count)]


STRICT = Limits(0.05, 0.10, 0.03, 0.04, 0.02, 0.02)


@pytest.mark.parametrize(
    ("predicted", "apart", "outcome"),
    [
        (1.01, 0.01, "within"),
        (1.06, 0.01, "not within"),
        (1.01, 0.03, "cannot tell"),  # it is right, but in such noise that proves nothing
        (1.055, 0.03, "not within"),  # the noise explains the single steps, not that all of them drift
        (1.10, 0.03, "not within"),
        (0.90, 0.04, "not within"),
    ],
)
def test_noise_is_never_a_pass_and_no_excuse(predicted: float, apart: float, outcome: str) -> None:
    assert STRICT.verdict(agreement(many(predicted, apart))).outcome == outcome


def test_one_execution_alone_tells_nothing() -> None:
    once = [replace(each, again_s=nan) for each in many(1.0, 0.0)]
    assert STRICT.verdict(agreement(once)).outcome == "cannot tell"
    late = [replace(each, predicted_s=1.2) for each in once]
    assert STRICT.verdict(agreement(late)).outcome == "not within"


@pytest.mark.parametrize("wrong", [DECODE, PROMPT, BOTH])
def test_a_wrong_regime_is_named(wrong: StepShape) -> None:
    steps = [each for shape in (DECODE, PROMPT, BOTH) for each in many(1.0, 0.01, 30, shape)]
    assert STRICT.verdict(agreement(steps)).outcome == "within"
    off = [replace(each, predicted_s=1.07) if each.shape == wrong else each for each in steps]
    verdict = STRICT.verdict(agreement(off))
    assert verdict.outcome == "not within"
    assert verdict.reasons == (
        f"{off[0].regime if wrong == DECODE else step(wrong).regime} steps drift by +7.0%, beyond 4.0%",
    )


@pytest.mark.parametrize(
    ("predicted", "device", "control", "outcome"),
    [
        (1.0, 1.0, 1.0, "within"),
        (1.0, 0.99, 0.99, "within"),  # close enough, one way and the other
        (1.0, 0.96, 0.96, "cannot tell"),  # it fails by the times as they are, and not in ratio
        (1.0, 1.0, 0.96, "cannot tell"),  # it passes by the times as they are, which prove nothing
        (1.0, 1.0, 1.025, "cannot tell"),  # it passes by both, on a device that has changed by more than is allowed
        (1.1, 0.96, 0.96, "not within"),  # whatever the device does, it is wrong
        (0.9, 0.96, 0.96, "not within"),
        (1.1, 1.04, 1.04, "not within"),
        (1.0, 0.9, 1.0, "not within"),  # the device is the same, so that it is the prediction
        (1.0, 0.9, 1.12, "not within"),
        (1.0, 0.96, 1.0 / 0.96**3, "not within"),
        (1.0, 0.92, 0.85, "cannot tell"),  # too long by one, too short by the other
    ],
)
def test_a_device_that_has_changed_is_neither_a_pass_nor_a_failure(
    predicted: float, device: float, control: float, outcome: str
) -> None:
    steps = [replace(step(DECODE, predicted, device, device), control=control) for _ in range(40)]
    verdict = STRICT.verdict(agreement(steps))
    assert verdict.outcome == outcome
    if outcome == "cannot tell":
        assert f"fixed steps take decode {control - 1.0:+.1%}): measure it again" in verdict.reasons[0]


def test_stalls_and_drifting_canaries_are_set_aside() -> None:
    odd = [step(DECODE, 1.0, 9.0, 1.0), step(DECODE, 1.0, 1.2, 1.2)]
    marked = [replace(odd[0], flag=STALL), replace(odd[1], flag=CANARY)]
    found = agreement([*many(1.0, 0.0), *marked])
    assert (found.all.steps, found.all.mape, found.flagged, found.stalled, found.of) == (40, 0.0, 2, 1, 42)
    assert STRICT.verdict(found).outcome == "within"
    many_more = agreement([*many(1.0, 0.0), *marked * 5])
    assert STRICT.verdict(many_more).outcome == "cannot tell"
    assert "10 of 50 steps were set aside (5 stalls, 5 beside" in STRICT.verdict(many_more).reasons[0]


def test_nothing_measured_is_not_within_limits() -> None:
    nothing = StepErrors(1, nan, nan, nan, nan, nan, 0.0)
    bad = LockstepErrors(plans_equal=True, all=nothing, regimes={}, drift_floor=0.0)
    assert len(LIMITS["cuda"].verdict(bad).reasons) == 3


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


def test_canary_flag_and_clocks_survive_a_file(tmp_path: Path) -> None:
    seen = replace(step(again=1.0), canary=1.04, flag=CANARY, sm_mhz=1980.0, power_w=650.5, control=0.97)
    write_csv(tmp_path / "steps.csv", [seen, step(again=1.0)])
    one, other = read_csv(tmp_path / "steps.csv")
    assert (one.canary, one.flag, one.sm_mhz, one.power_w, one.control) == (1.04, CANARY, 1980.0, 650.5, 0.97)
    assert (other.canary, other.flag) == (1.0, "")
    assert np.isnan(other.control)
    lines = (tmp_path / "steps.csv").read_text().splitlines()
    for columns, flags in ((1, [CANARY, ""]), (5, ["", ""])):
        older = "\n".join(",".join(line.split(",")[:-columns]) for line in lines) + "\n"
        (tmp_path / "older.csv").write_text(older)
        assert [each.flag for each in read_csv(tmp_path / "older.csv")] == flags, "files without these columns are read"


def test_a_time_not_taken_is_an_empty_cell(tmp_path: Path) -> None:
    write_csv(tmp_path / "steps.csv", [step()])
    assert (tmp_path / "steps.csv").read_text().endswith(",100,,1.0,1,,,,\n")
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
