import math

import pytest

from simulator.metrics.metric import percent


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.93, "93 %"), (1.0, "100 %"), (0.0, "0 %"), (0.0042, "0.4 %"), (12.5, "1,250 %"), (None, "-"), (math.nan, "-")],
)
def test_whole_numbers_and_below_one_a_figure(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_digits_and_signs() -> None:
    assert [percent(x, 1, signed=True) for x in (0.0123, -0.5, math.nan)] == ["+1.2 %", "-50.0 %", "-"]
    assert [percent(x, 0) for x in (0.004, 0.5)] == ["0 %", "50 %"]
    assert percent(-0.0042, signed=True) == "-0.4 %"
