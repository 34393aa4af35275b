"""Decodes beside prompts: the form is recovered where it holds, and the shipped power is that of the data."""

import numpy as np
import pytest

from calibration.rows import make_table
from docs.writers.accuracy.beside import FEWEST_TOKENS, Mixed, fit_power, leave_one_card_out, mixed_steps, read_mixed
from simulator.timing.tables.attention import POWER, beside_factor
from tests.shared_data import shared


def steps(power: float, group: float, card: str = "one") -> Mixed:
    """Mixed steps in which decodes take group^power times as long as alone."""
    rows: dict[str, list[float]] = {name: [] for name in ("chunk", "cached", "seqs", "context", "us")}

    def add(chunk: float, seqs: float, context: float, us: float) -> None:
        for name, value in zip(rows, (chunk, 0.0, seqs, context, us), strict=True):
            rows[name].append(value)

    contexts = [(1.0, 16.0), (16.0, 128.0), (64.0, 512.0), (128.0, 1024.0)]
    decode = {place: 9.0 + 0.002 * place[0] * place[1] for place in contexts}
    launch = min(decode.values())
    for chunk in (16.0, 64.0, 512.0):
        add(chunk, 0, 0, 10 + 0.05 * chunk)
        for (seqs, context), us in decode.items():
            add(chunk, seqs, context, 10 + 0.05 * chunk + group**power * (us - launch))
    for (seqs, context), us in decode.items():
        add(0, seqs, context, us)
    return mixed_steps(make_table("attention", rows), f"{card}-{group:g}", card, group)


@pytest.mark.parametrize("power", [0.0, 0.3, 0.48, 1.0])
def test_the_power_is_found_where_the_form_holds(power: float) -> None:
    some = [steps(power, 4.0), steps(power, 8.0)]
    assert len(some[0].us) == 2 * 3  # chunks of `FEWEST_TOKENS` and more, decodes of enough keys
    assert FEWEST_TOKENS == 64
    assert fit_power(some) == pytest.approx(power, abs=0.005)
    assert np.abs(some[0].errors(power)).max() < 1e-9


def test_a_card_is_predicted_with_the_power_of_the_others() -> None:
    held = leave_one_card_out([steps(0.2, 4.0, "one"), steps(0.6, 4.0, "two")])
    assert [each.power for each in held] == pytest.approx([0.6, 0.2])
    assert held[0].bias > 0 > held[1].bias


def test_flash_attention_3_packs_heads_whatever_the_step_holds() -> None:
    assert beside_factor("h100", 32, 8) == 1.0
    assert beside_factor("a100-80gb", 32, 8) == pytest.approx(4**POWER)
    assert beside_factor("a100-80gb", 32, 32) == 1.0
    assert beside_factor("b200", 32, 8) == 1.0  # FlashInfer: a kernel for each
    assert beside_factor("l40s", 32, 8) == pytest.approx(4**POWER)
    assert beside_factor("l40s", 32, 8, kv="fp8") == 1.0


@pytest.mark.shared
def test_the_shipped_power_is_that_of_both_cards() -> None:
    """And each card alone gives it too, so nothing of a card is left in it."""
    some = read_mixed(shared("measured/calibration"))
    assert fit_power(some) == pytest.approx(POWER)
    for held in leave_one_card_out(some):
        assert held.power == pytest.approx(POWER, abs=0.02)
        assert held.median < 0.16
        assert held.median < 0.65 * held.plain_median
