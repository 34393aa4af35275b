"""Unequal batches: the numbers are found where the form holds, and the shipped ones are those of the data."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import scenarios
from calibration.fit import of_skew
from docs.writers.accuracy.uneven import Rows, Uneven, fit_late, fit_least, leave_one_card_out, read_uneven
from scenarios.measured import read_measured
from scenarios.profiles import shipped_profiles
from scenarios.validate.compare import validate
from simulator.timing.cost import StepShape
from simulator.timing.tables.attention import ALONE, LATE, beside_factor, estimated_skew
from tests.shared_data import shared


def made(least: float, late: float, card: str) -> Uneven:
    """Batches of two lengths whose times are what these numbers say."""
    shapes: dict[int, list[StepShape]] = {0: [], 256: []}
    for prompt, found in shapes.items():
        for seqs in (32, 64, 128):
            for longs in (1, seqs // 8, seqs // 4):
                context = longs * 4000 + (seqs - longs) * 1000
                squares = longs * 4000**2 + (seqs - longs) * 1000**2
                found.append(StepShape(seqs, context, int(prompt > 0), prompt, prompt, 0, 4000, squares, prompt))
    some = [Rows(found, np.ones(len(found)), np.full(len(found), 100.0)) for found in shapes.values()]
    bare = Uneven(card, card, 32, 8, 0.005, *some)
    skew = bare.skew(least, late)
    assert skew is not None
    timed = [replace(rows, us=100.0 + np.array([skew.us(shape) for shape in rows.shapes])) for rows in some]
    return replace(bare, alone=timed[0], beside=timed[1])


def test_both_numbers_are_found_where_the_form_holds() -> None:
    some = [made(0.3, 0.4, "rtx-4090"), made(0.3, 0.4, "rtx-pro-6000")]
    assert (fit_least(some), fit_late(some)) == (0.3, 0.4)
    for held in leave_one_card_out(some):
        assert held.mean < 1e-9 < held.plain_mean


def test_a_card_is_predicted_with_the_numbers_of_the_others() -> None:
    held = leave_one_card_out([made(0.24, 0.2, "rtx-4090"), made(0.5, 0.8, "rtx-pro-6000")])
    assert [each.number for each in held] == [0.5, 0.8, 0.24, 0.2]
    assert held[0].bias > 0 > held[2].bias


def fit_cards(some: Sequence[Uneven]) -> tuple[float, float]:
    """Both numbers, each the mean of the cards' own."""
    cards = [[each for each in some if each.card == card] for card in sorted({each.card for each in some})]
    least, late = ([fit(of) for of in cards] for fit in (fit_least, fit_late))
    return float(np.mean(least)), float(np.mean(late))


@pytest.mark.shared
def test_the_shipped_numbers_are_those_of_both_cards_and_better_than_none() -> None:
    some = read_uneven(shared("measured/calibration"))
    assert fit_cards(some) == pytest.approx((ALONE, LATE))
    for held in leave_one_card_out(some):
        assert held.mean < 0.8 * held.plain_mean
        assert abs(held.bias) < 0.5 * abs(held.plain_bias)
        assert held.mean < 0.07


@pytest.mark.shared
@pytest.mark.slow
def test_a_real_server_is_predicted_by_the_estimate_as_by_what_was_measured(tmp_path: Path) -> None:
    """Llama-3.1-8B on an RTX PRO 6000, its unequal batches by the numbers of the RTX 4090.

    The score is within half a per cent of that with its own rows, and a quarter of that without either.
    """
    log = read_measured(
        shared("measured/ground_truth/llmservingsim_vllm/rtxpro6000_llama31_8b_tp1/vllm_requests.jsonl.gz")
    )
    document = json.loads(shipped_profiles()["rtx-pro-6000-llama-3.1-8b"].read_text())
    key_us = document["attention"]["decode"]["physics"]["roofs"][0]["keys"]
    estimate = estimated_skew("rtx-pro-6000", 32, 8, key_us, beside_factor("rtx-pro-6000", 32, 8), 0.42, 0.56)
    assert estimate is not None
    own = document.pop("skew")
    scores = []
    for skew in ({"skew": own}, {"skew": of_skew(estimate)}, {}):
        path = tmp_path / "profile.json"
        path.write_text(json.dumps({**document, **skew}))
        chosen = scenarios.load("measured-rtxpro6000-llama31-8b", (f"cost={{kind: profile, path: {path}}}",))
        scores.append(validate(log, scenarios.run(chosen).records).score)
    assert scores[1] < scores[0] + 0.005
    assert scores[1] < 0.25 * scores[2]
