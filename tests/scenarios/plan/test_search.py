"""The search against answers that are known beforehand."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.plan.search import Found, fewest, largest


@dataclass(frozen=True)
class Probe:
    holds: bool
    excess: float


def steep(limit: float, power: float = 3.0) -> Callable[[float], Probe]:
    """A latency that grows with a power of the rate and is at its limit at `limit`."""

    def probe(rate: float) -> Probe:
        excess = power * math.log(rate / limit)
        return Probe(excess <= 0, excess)

    return probe


@given(
    limit=st.floats(1e-3, 1e4),
    start=st.floats(1e-3, 1e4),
    power=st.floats(0.2, 50.0),
    tolerance=st.floats(0.002, 0.2),
)
def test_brackets_the_limit_within_the_tolerance(limit: float, start: float, power: float, tolerance: float) -> None:
    found = largest(steep(limit, power), start, tolerance=tolerance)
    assert found.is_settled
    assert found.held is not None
    assert found.failed is not None
    low, high = found.held[0], found.failed[0]
    assert low <= limit * (1 + 1e-9) < high * (1 + 1e-9)
    assert high / low <= 1 + tolerance + 1e-4  # rates have five digits


def test_needs_few_runs_near_the_answer() -> None:
    found = largest(steep(10.3), 10.0, tolerance=0.02, step=1.08)
    assert len(found.probes) <= 4


def test_a_run_without_a_value_still_halves() -> None:
    def probe(rate: float) -> Probe:
        return Probe(rate <= 7.0, 20.0 if rate > 7.0 else -1.0)

    found = largest(probe, 1.0, tolerance=0.01)
    assert found.held is not None
    assert 7.0 / 1.01 <= found.held[0] <= 7.0


def test_ends_where_there_is_no_limit_and_where_nothing_holds() -> None:
    always = largest(lambda rate: Probe(True, -1.0), 1.0, most=100.0)
    assert (always.held and always.held[0], always.failed, always.is_settled) == (100.0, None, True)
    never = largest(lambda rate: Probe(False, 1.0), 1.0, least=0.01)
    assert (never.held, never.failed and never.failed[0], never.is_settled) == (None, 0.01, True)


ODD = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, -1e-9, 0.0, 1e-9, 0.3, 20.0])


@given(
    base=st.floats(1e-3, 1e5),
    span=st.floats(1.0, 5000.0),
    place=st.floats(-1.0, 1.0),
    answers=st.lists(st.tuples(st.booleans(), ODD, st.booleans()), min_size=1, max_size=40),
    step=st.floats(1.02, 3.0),
    slope=st.none() | ODD,
    tolerance=st.sampled_from([0.0, 1e-9, 1e-4, 0.02, math.nan]),
)
def test_ends_whatever_the_probes_say(
    base: float,
    span: float,
    place: float,
    answers: list[tuple[bool, float, bool]],
    step: float,
    slope: float | None,
    tolerance: float,
) -> None:
    """The ends need not have five digits, answers need not be monotone, and an excess may be no number."""
    asked: list[float] = []
    few: list[Probe] = []

    def probe(rate: float) -> Probe:
        assert rate not in asked, "a rate is asked once"
        asked.append(rate)
        holds, excess, is_too_little = answers[min(len(asked), len(answers)) - 1]
        done = Probe(holds, excess)
        few.extend([done] if is_too_little and not holds else [])
        return done

    found = largest(
        probe,
        base * span**place,
        tolerance=tolerance,
        step=step,
        slope=slope,
        least=base / span,
        most=base * span,
        too_little=lambda done: any(done is each for each in few),
    )
    assert found.is_settled
    assert len(asked) < 200
    if not (found.held and found.failed):
        end = asked[-1]
        assert end in (float(f"{base / span:.5g}"), float(f"{base * span:.5g}"), asked[0])


@pytest.mark.parametrize("base", [5.5, 5.4958, 0.1234567, 33333.4])
def test_an_impossible_limit_ends_at_the_least_rate(base: float) -> None:
    found = largest(lambda rate: Probe(False, 20.0), base, least=base / 4096, most=base * 4096)
    assert found.is_settled
    assert len(found.probes) <= 14


def test_goes_up_where_the_load_is_too_small() -> None:
    """A throughput that is to be at least 5/s, with latencies that hold up to 8/s: below 5 there is too little load."""

    def probe(rate: float) -> Probe:
        return Probe(5.0 <= rate <= 8.0, 0.1 if rate < 5.0 else math.log(rate / 8.0))

    found = largest(probe, 1.0, tolerance=0.02, step=1.5, too_little=lambda each: each.excess == 0.1)
    assert found.held is not None
    assert found.failed is not None
    assert found.held[0] <= 8.0 < found.failed[0] <= found.held[0] * 1.02


def test_a_budget_that_ends_leaves_what_was_found() -> None:
    calls: list[float] = []

    def probe(rate: float) -> Probe:
        calls.append(rate)
        return steep(100.0)(rate)

    found: Found[Probe] = largest(probe, 1.0, tolerance=0.001, go_on=lambda: len(calls) < 4)
    assert not found.is_settled
    assert len(calls) == 4
    assert found.held is not None


@given(answer=st.integers(1, 1024), start=st.integers(-3, 3000), tells=st.booleans(), slack=st.sampled_from([0, 0.02]))
def test_finds_the_fewest(answer: int, start: int, tells: bool, slack: float) -> None:
    asked: list[int] = []

    def probe(replicas: int) -> Probe:
        asked.append(replicas)
        excess = 3 * math.log(answer / replicas) if tells else 20.0
        return Probe(replicas >= answer, excess if replicas < answer else min(excess, 0.0))

    found, failed = fewest(probe, start, 1024, slack=slack)
    assert found is not None
    assert answer <= found <= max(answer, answer * (1 + slack) + 1)
    assert failed < answer
    assert found - failed <= max(1, slack * found)
    assert len(asked) == len(set(asked))
    assert all(1 <= replicas <= 1024 for replicas in asked)


def test_a_number_far_off_is_reached_in_few_runs() -> None:
    asked: list[int] = []

    def probe(replicas: int) -> Probe:
        asked.append(replicas)
        excess = 1.2 * math.log(250 / replicas)
        return Probe(excess <= 0, excess if excess <= 0 else 20.0)  # failed ones are stopped

    assert fewest(probe, 1024, 1024, slack=0.02)[0] in range(250, 256)
    assert len(asked) <= 10


@pytest.mark.parametrize("start", [1, 500, 5000])
def test_says_where_no_number_is_enough(start: int) -> None:
    assert fewest(lambda replicas: Probe(False, 20.0), start, 64) == (None, 64)


def test_a_slope_foresees_the_second_run() -> None:
    """From above the rate at which a latency that grows with its square is at its limit, to a little below it."""
    found = largest(steep(10.0, power=2.0), 15.0, tolerance=0.05, step=1.08, slope=2.0)
    assert [rate for rate, _ in found.probes[:2]] == [15.0, pytest.approx(10.0 * math.exp(-0.6 * 0.05), rel=1e-3)]
    assert len(found.probes) <= 5


def test_a_sharp_bend_takes_few_runs() -> None:
    """Far below the limit little grows; a little above it the queue does: the steep end must not hold the search up."""

    def probe(rate: float) -> Probe:
        over = math.log(rate / 18.8)
        return Probe(over <= 0, 15 * over if over > 0 else -0.02 + 0.5 * over)

    found = largest(probe, 17.9, tolerance=0.02, step=1.09)
    assert found.is_settled
    assert len(found.probes) <= 6


def test_the_tolerance_may_follow_from_the_probes() -> None:
    seen: list[int] = []

    def tolerance(probes: Sequence[tuple[float, Probe]]) -> float:
        seen.append(len(probes))
        return 0.2 if len(probes) < 4 else 0.01

    found = largest(steep(10.0, power=0.7), 6.0, tolerance=tolerance, step=1.5)
    assert found.held is not None
    assert found.failed is not None
    assert found.failed[0] / found.held[0] <= 1.2
    assert seen == sorted(seen)
