"""SLOs in words."""

from __future__ import annotations

import pytest

from reports.slo import limits_text, share_words, target_words
from simulator.metrics.outcomes import Outcome
from simulator.metrics.slo import LimitShare, Slo


@pytest.mark.parametrize(
    ("slo", "text"),
    [
        (Slo(1000, 50), "TTFT <= 1,000 ms and TPOT <= 50 ms"),
        (Slo(itl_ms=200, queue_time_ms=0.5), "ITL <= 200 ms and queue time <= 0.5 ms"),
        (Slo(1000, classes={"batch": Slo(e2el_ms=60000)}), "TTFT <= 1,000 ms; E2E <= 60,000 ms for batch"),
        (Slo(classes={"batch": Slo(e2el_ms=5), "chat": Slo(attainment=1)}), "E2E <= 5 ms for batch"),
    ],
)
def test_limits(slo: Slo, text: str) -> None:
    assert limits_text(slo) == text


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome("p99_ttft_ms", None, 1000, 1240, False, 240, 0.24), "p99_ttft_ms 1,240 exceeds 1,000 by 24 %"),
        (Outcome("p99_ttft_ms", None, 1000, 1000.4, False, 0.4, 0.0004), "p99_ttft_ms 1,000.4 exceeds 1,000 by 0.04 %"),
        (Outcome("p50_tpot_ms", None, 50, 6.704, True, -43.3, -0.87), "p50_tpot_ms 6.7 meets 50"),
        (
            Outcome("slo_attainment", None, 0.99, 0.962, False, 0.028, 0.0283),
            "slo_attainment 96.2 % is 2.8 points below 99 %",
        ),
        (
            Outcome("slo_attainment", "chat", 0.99, 0.98999, False, 0.00001, 0.00001),
            "chat: slo_attainment 98.999 % is 0.001 points below 99 %",
        ),
        (
            Outcome("p99_e2el_ms", "batch", 60000, 41200, True, -18800, -0.3),
            "batch: p99_e2el_ms 41,200 meets 60,000",
        ),
        (Outcome("p99_itl_ms", None, 5, None, True, None, None), "p99_itl_ms has no value, 5 is met"),
        (Outcome("p99_ttft_ms", None, 5, None, False, None, None), "p99_ttft_ms: no request finished, 5 is missed"),
    ],
)
def test_a_line_a_target(outcome: Outcome, text: str) -> None:
    assert target_words([outcome]) == [text]


def test_missed_targets_come_first() -> None:
    met = Outcome("p50_ttft_ms", None, 9, 3, True, -6, -0.6)
    missed = Outcome("p50_tpot_ms", None, 1, 2, False, 1, 1.0)
    assert [line.split()[0] for line in target_words([met, missed, met])] == ["p50_tpot_ms", *["p50_ttft_ms"] * 2]


def test_limits_that_are_missed() -> None:
    shares = [
        LimitShare("ttft", None, 1000, 0.996),
        LimitShare("tpot", None, 50, 1.0),
        LimitShare("itl", "batch", 30, 0.5),
    ]
    assert share_words(shares) == "Limits missed: ITL <= 30 ms by 50 % of batch and TTFT <= 1,000 ms by 0.4 %."
    assert share_words(shares[1:2]) == ""
