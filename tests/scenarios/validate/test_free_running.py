"""What is made of two sides that ran alone: errors, the order of policies, tables."""

import pytest

from scenarios.validate.lockstep_case import (
    Point,
    duration_rows,
    free_running_json,
    free_running_rows,
    kendall_tau,
    mean_errors,
    same_answers,
)


def point(policy: str, simulated: float, executed: float, rate: float = 1.0, seed: int = 0, token: int = 7) -> Point:
    def side(e2e: float) -> dict[str, float | None]:
        return {"mean_e2el_ms": e2e, "p99_e2el_ms": 2 * e2e, "num_steps": 10, "duration": e2e / 10, "mean_itl_ms": None}

    return Point(policy, rate, seed, side(simulated), side(executed), {0: [token, 8]})


POINTS = [point("a", 110, 100), point("b", 190, 200), point("c", 300, 300), point("a", 90, 100, seed=1, token=9)]


def test_errors_are_means_over_all_runs() -> None:
    found = mean_errors(POINTS)
    assert found["mean_e2el_ms"] == pytest.approx((0.1 - 0.05 + 0 - 0.1) / 4)
    assert found["num_steps"] == 0
    assert "mean_itl_ms" not in found, "nobody has it"
    assert POINTS[0].error("mean_itl_ms") is None


def test_kendalls_tau_by_hand() -> None:
    assert kendall_tau(POINTS) == 1
    assert kendall_tau([point("a", 1, 3), point("b", 2, 2), point("c", 3, 1)]) == -1
    assert kendall_tau([point("a", 1, 1), point("b", 2, 3), point("c", 3, 2)]) == pytest.approx(1 / 3)
    assert kendall_tau([point("a", 1, 1), point("b", 1, 2)]) == 0, "a tie on one side counts for nothing"
    assert kendall_tau([point("a", 1, 1)]) is None
    both = [point("a", 1, 1), point("b", 2, 2), point("a", 1, 2, rate=2), point("b", 2, 1, rate=2)]
    assert kendall_tau(both) == 0, "the mean over the rates"


def test_answers_are_compared_within_a_seed() -> None:
    assert same_answers(POINTS)
    assert not same_answers([*POINTS, point("b", 1, 1, seed=1)])


def test_tables() -> None:
    assert free_running_rows(POINTS)[1:] == [
        ["a", "1", "-", "-", "+0.0%", "+0.0%", "+0.0%"],
        ["b", "1", "-", "-", "-5.0%", "-5.0%", "+0.0%"],
        ["c", "1", "-", "-", "+0.0%", "+0.0%", "+0.0%"],
    ]
    assert duration_rows(POINTS)[1:] == [
        ["a", "1", "10.000", "10.000", "1.00", "1.00"],
        ["b", "1", "20.000", "19.000", "0.50", "0.53"],
        ["c", "1", "30.000", "30.000", "0.33", "0.33"],
    ]


def test_json() -> None:
    found = free_running_json(POINTS, {"device": "x"})
    assert set(found) == {"points", "errors", "kendall_tau", "same_answers", "device"}
    assert found["points"][1]["duration_s"] == {"executed": 20.0, "simulated": 19.0}
    assert found["points"][1]["errors"]["mean_e2el_ms"] == pytest.approx(-0.05)
