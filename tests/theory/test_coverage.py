"""A 95 % interval holds the answer of a known queue in 95 of 100 runs; over 200 runs, in 92 to 98 % of them."""

import pytest

from tests.theory.coverage import REPLICATIONS, Case, fast_cases, simulated_cases

LOW, HIGH = 0.92, 0.98  # two standard deviations of a share of 95 % in 200


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "without warm-up"])
@pytest.mark.parametrize("case", fast_cases(), ids=lambda case: case.name)
def test_intervals_hold_what_they_promise(case: Case, cut: bool) -> None:
    held, too_short = case.coverage(REPLICATIONS, cut=cut)
    assert LOW <= held <= HIGH
    assert too_short <= 2, "an interval without an end holds nearly everything"


@pytest.mark.slow
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "without warm-up"])
def test_intervals_of_simulated_runs_hold_what_they_promise(cut: bool) -> None:
    for case in simulated_cases():
        held, too_short = case.coverage(REPLICATIONS, cut=cut)
        assert LOW <= held <= HIGH, case.name
        assert too_short <= 2, case.name
