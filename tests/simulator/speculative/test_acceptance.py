"""Laws of acceptance, their draws, and the measurements that come with them."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.request import Request
from simulator.speculative import (
    PRESETS,
    DrawnAcceptance,
    RequestAcceptance,
    check_rates,
    geometric,
    least_variance,
    of_curve,
)

STEPS = 100_000


@pytest.mark.parametrize("name", PRESETS)
def test_the_mean_of_a_hundred_thousand_steps_is_that_of_the_curve(name: str) -> None:
    """Within the 99 % interval of the mean, by the spread that was drawn: with 3 drafts, or all measured."""
    preset = PRESETS[name]
    drafts = min(3, preset.most_drafts)
    drawn = DrawnAcceptance(preset.rates_of(drafts), key=7)
    accepted = np.array([drawn.accepted(row, step) for row in range(200) for step in range(STEPS // 200)])
    if preset.lengths:
        expected = preset.lengths[drafts - 1]
    elif preset.at is not None:
        p = geometric(preset.at[1], preset.at[0])[0]
        expected = sum(p**n for n in range(drafts + 1))
    else:
        expected = 1 + sum(preset.rates[:drafts])
    half = 2.576 * float(accepted.std()) / math.sqrt(STEPS)
    assert abs(1 + accepted.mean() - expected) <= half


def test_every_position_has_its_rate() -> None:
    rates = (0.8, 0.5, 0.5, 0.1)
    drawn = DrawnAcceptance(rates, key=1)
    accepted = np.array([drawn.accepted(row, step) for row in range(500) for step in range(200)])
    for place, rate in enumerate(rates):
        share = float((accepted > place).mean())
        assert abs(share - rate) <= 2.576 * math.sqrt(rate * (1 - rate) / len(accepted))
    assert accepted.max() == 4


def test_a_draw_depends_on_seed_row_and_step_alone() -> None:
    def draws(key: int, order: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        drawn = DrawnAcceptance((0.7, 0.4, 0.2), key)
        return {place: drawn.accepted(*place) for place in order}

    places = [(row, step) for row in (0, 1, 10**6) for step in (0, 1, 63, 64, 1000)]
    assert draws(3, places) == draws(3, places[::-1])
    assert draws(3, places) != draws(4, places)
    alike = DrawnAcceptance((0.7, 0.4, 0.2), 3)
    one, other = ([alike.accepted(row, step) for step in range(200)] for row in (0, 1))
    assert one != other


def test_forgotten_draws_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = DrawnAcceptance((0.5, 0.5), 3)
    expected = [kept.accepted(row, 5) for row in range(50)]
    monkeypatch.setattr("simulator.speculative._BLOCKS_KEPT", 7)
    few = DrawnAcceptance((0.5, 0.5), 3)
    for _ in range(2):
        assert [few.accepted(row, 5) for row in range(50)] == expected


@given(st.integers(1, 12), st.floats(0, 1))
def test_laws_of_a_mean_have_that_mean(drafts: int, share: float) -> None:
    length = 1 + share * drafts
    for rates in (least_variance(length, drafts), geometric(length, drafts)):
        check_rates(rates)
        assert len(rates) == drafts
        assert 1 + sum(rates) == pytest.approx(length, abs=1e-9)


def test_least_variance_is_vllms_synthetic_law() -> None:
    """Worked out by hand from `_acceptance_length_to_rates` in vllm/config/speculative.py (0.33)."""
    assert least_variance(2.5, 3) == (1.0, 0.5, 0.0)
    assert least_variance(1.0, 2) == (0.0, 0.0)
    assert least_variance(4.0, 3) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="within 1 and 4"):
        least_variance(4.2, 3)


@given(st.lists(st.floats(1, 9), min_size=1, max_size=8))
def test_the_rates_of_any_curve_fall_and_have_the_mean_of_its_end(lengths: list[float]) -> None:
    lengths = [min(length, place + 2.0) for place, length in enumerate(lengths)]
    rates = of_curve(lengths)
    check_rates(rates)
    assert 1 + sum(rates) == pytest.approx(lengths[-1], abs=1e-9)


def test_a_falling_curve_keeps_its_differences() -> None:
    assert of_curve((1.8, 2.3, 2.5)) == pytest.approx((0.8, 0.5, 0.2))
    assert of_curve((1.8, 2.3, 2.9)) == pytest.approx((0.8, 0.55, 0.55))


@pytest.mark.parametrize("rates", [(0.5, 0.6), (1.2,), (-0.1,), (math.nan,)])
def test_rates_that_are_no_law_are_refused(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rate"):
        DrawnAcceptance(rates, 0)


def test_a_list_goes_round_and_a_class_has_its_own_law() -> None:
    always, never = DrawnAcceptance((1.0, 1.0), 0), DrawnAcceptance((0.0, 0.0), 0)
    found = RequestAcceptance(never, {"code": always})
    listed = Request(0, "0", 0.0, 10, 10, 10, accepted_drafts=(2, 0, 1))
    for request in (listed, listed._replace(row=1, accepted_drafts=None, class_name="code")):
        found.enter(request)
    assert [found.accepted(0, step) for step in range(5)] == [2, 0, 1, 2, 0]
    assert (found.accepted(1, 0), found.accepted(2, 0)) == (2, 0)


def test_measured_curves_are_plausible() -> None:
    for preset in PRESETS.values():
        if preset.lengths:
            for before, after in pairwise(preset.lengths):
                assert after - before < 1
        for drafts in range(1, preset.most_drafts + 1):
            check_rates(preset.rates_of(drafts))
