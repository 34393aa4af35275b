"""The rule of an autoscaler, by hand: the Kubernetes HPA's formula, tolerance and stabilization windows."""

from dataclasses import replace

import pytest

from simulator.fleet.group import Autoscaling, Seen, Stabilized, Targets, proposal

RULE = Autoscaling(1, 10, Targets(num_requests_waiting=4.0), scale_down_stabilization_s=60.0)
CALM = Seen(current=2, waiting=8, kv=0.0, ended=0, attained=0)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [(8, 2), (7, 2), (9, 3), (20, 5), (1, 1), (0, 1), (1000, 10)],
)
def test_ceil_of_the_sum_over_the_target_within_the_limits(waiting: int, expected: int) -> None:
    assert proposal(RULE, CALM._replace(waiting=waiting)) == expected


def test_what_is_near_the_target_is_let_be() -> None:
    rule = replace(RULE, targets=Targets(num_requests_waiting=10.0))
    assert proposal(rule, CALM._replace(waiting=21)) == 2
    assert proposal(rule, CALM._replace(waiting=23)) == 3


def test_the_largest_proposal_counts() -> None:
    rule = replace(RULE, targets=Targets(num_requests_waiting=4.0, kv_cache_usage=0.5))
    assert proposal(rule, CALM._replace(kv=1.8)) == 4


@pytest.mark.parametrize(("ended", "attained", "expected"), [(10, 8, 3), (10, 9, 1), (0, 0, 2)])
def test_attainment_asks_for_one_more_or_one_fewer(ended: int, attained: int, expected: int) -> None:
    rule = replace(RULE, targets=Targets(slo_attainment=0.9))
    assert proposal(rule, CALM._replace(ended=ended, attained=attained)) == expected


def test_fewer_are_taken_once_the_whole_window_asked_for_fewer() -> None:
    stabilized = Stabilized(RULE)
    asked = [(0.0, 5), (15.0, 2), (30.0, 3), (60.0, 1), (75.0, 1), (90.0, 1), (120.0, 1)]
    assert [stabilized.wanted(at_s, 5, count) for at_s, count in asked] == [5, 5, 5, 5, 3, 3, 1]


def test_more_are_taken_once_the_whole_window_asked_for_more() -> None:
    stabilized = Stabilized(replace(RULE, scale_up_stabilization_s=30.0))
    asked = [(0.0, 2), (15.0, 6), (30.0, 4), (45.0, 5)]
    assert [stabilized.wanted(at_s, 2, count) for at_s, count in asked] == [2, 2, 2, 4]
