"""Numbers and names in a plan's sentences."""

import pytest

from scenarios.plan.candidate import make_candidate
from scenarios.plan.text import money
from tests.scenarios.plan.cases import chat


@pytest.mark.parametrize(
    ("usd", "text"), [(2.7, "2.70"), (0.35, "0.350"), (0.2136, "0.214"), (1640.2, "1,640"), (12.0, "12.00")]
)
def test_money(usd: float, text: str) -> None:
    assert money(usd) == text


def test_a_mapping_among_the_settings_is_named_by_its_kind() -> None:
    assert make_candidate(chat(), {"cost": {"kind": "roofline"}}).label == "cost roofline"
