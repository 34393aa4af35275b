"""Law 10: with one slot every policy is a first-come-first-served server, and queueing theory knows its waits."""

import math
from functools import cache

import numpy as np
import pytest

from simulator.results.records import Ints
from simulator.timing.formula_cost import Linear
from tests.theory.queues import (
    Service,
    bulk_wait_s,
    first_come_first_served,
    holds,
    interval,
    md1_waits_at_most,
    pollaczek_khinchine_s,
    replications,
    sample,
    settled,
    single_server,
    sojourns_s,
    waits_s,
)

Pair = tuple[Ints, Ints]
SOME = ("static", "continuous", "chunked_prefill", "preemptive")
FIRST_COME_FIRST_SERVED = (*SOME, "orca", "vllm_v0", "sarathi", "fastgen")  # with one slot, and equal priorities
UTILISATIONS = {0.3: (250, 0.35), 0.6: (400, 0.35), 0.85: (1_200, 0.4)}  # requests a run, and how near to get


def ones(count: int) -> Ints:
    return np.ones(count, dtype=np.int64)


def constant(rng: np.random.Generator, count: int) -> Pair:
    return ones(count), ones(count)


def constant_answers(rng: np.random.Generator, count: int) -> Pair:
    return ones(count), 5 * ones(count)


def exponential_prompts(rng: np.random.Generator, count: int) -> Pair:
    return np.ceil(rng.exponential(4000.0, count)).astype(np.int64), ones(count)


def geometric_answers(rng: np.random.Generator, count: int) -> Pair:
    return ones(count), rng.geometric(1 / 20, count)


def lognormal_prompts(rng: np.random.Generator, count: int) -> Pair:
    return np.ceil(1000 * rng.lognormal(0.0, 0.8, count)).astype(np.int64), ones(count)


CONSTANT = Service(constant, Linear(1.0))
CONSTANT_ANSWERS = Service(constant_answers, Linear(0.2))
EXPONENTIAL = Service(exponential_prompts, Linear(0.0, 1 / 4000))
GEOMETRIC = Service(geometric_answers, Linear(0.05))
LOGNORMAL = Service(lognormal_prompts, Linear(0.1, 1e-3))

SERVICES = {
    "constant": CONSTANT,
    "constant answers": CONSTANT_ANSWERS,
    "exponential prompts": EXPONENTIAL,
    "geometric answers": GEOMETRIC,
    "lognormal prompts": LOGNORMAL,
}


@pytest.mark.parametrize("utilisation", [0.3, 0.85, 1.2])
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("name", FIRST_COME_FIRST_SERVED)
def test_a_policy_with_one_slot_is_a_single_server(name: str, service: str, utilisation: float) -> None:
    """Not in the mean but for each request, overload included."""
    drawn = sample(SERVICES[service], utilisation, 400, seed=99)
    requests = single_server(name, SERVICES[service].cost, drawn.workload()).requests
    starts_s, ends_s = first_come_first_served(drawn)
    np.testing.assert_allclose(requests.scheduled_s, starts_s, rtol=1e-11)
    np.testing.assert_allclose(requests.last_token_s, ends_s, rtol=1e-11)


@pytest.mark.parametrize("utilisation", UTILISATIONS)
@pytest.mark.parametrize("service", SERVICES)
def test_a_single_server_is_as_theory_has_it(service: str, utilisation: float) -> None:
    """A million requests each: with the test above, what holds here to a few per cent holds for every policy."""
    drawn_from = SERVICES[service]
    mean_s, mean_square = moments(drawn_from)
    rate = utilisation / mean_s
    waits = [
        settled(first_come_first_served(drawn)[0] - drawn.arrival_s) for drawn in replications(drawn_from, rate, 40_000)
    ]
    expected = pollaczek_khinchine_s(rate, mean_s, mean_square)
    holds(interval([wait.mean() for wait in waits]), expected, within=0.12)
    holds(interval([(wait < 1e-9).mean() for wait in waits]), 1 - utilisation, within=0.12)


@cache
def moments(service: Service) -> tuple[float, float]:
    """Mean and mean square of the service time that the lengths, in whole tokens, really have."""
    large = service.seconds(*service.lengths(np.random.default_rng(1), 4_000_000))
    return float(large.mean()), float((large**2).mean())


# The same without the detour, as far as runs of a second can tell. The two tests above say it of each request.
by_utilisation = pytest.mark.parametrize(
    "utilisation", [pytest.param(share, marks=() if share == 0.6 else pytest.mark.long) for share in UTILISATIONS]
)

some_policies = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("static", "chunked_prefill") else pytest.mark.long) for name in SOME],
)


@by_utilisation
@some_policies
def test_md1(name: str, utilisation: float) -> None:
    """Constant service of 1 s: mean wait rho / 2 (1 - rho); a share 1 - rho does not wait; Erlang's distribution."""
    count, within = UTILISATIONS[utilisation]
    runs = [
        settled(waits_s(single_server(name, CONSTANT.cost, drawn.workload())))
        for drawn in replications(CONSTANT, utilisation, count)
    ]
    holds(interval([waits.mean() for waits in runs]), utilisation / (2 * (1 - utilisation)), within)
    holds(interval([(waits == 0).mean() for waits in runs]), 1 - utilisation, within)
    for time_s in (0.5, 1.0, 2.5):
        expected = md1_waits_at_most(utilisation, 1.0, time_s)
        holds(interval([(waits <= time_s).mean() for waits in runs]), expected, within)


@by_utilisation
@some_policies
def test_mm1(name: str, utilisation: float) -> None:
    """Exponential service of 1 s: mean time in the system 1 / (1 - rho), and exponential itself."""
    count, within = UTILISATIONS[utilisation]
    runs = [
        settled(sojourns_s(single_server(name, EXPONENTIAL.cost, drawn.workload())))
        for drawn in replications(EXPONENTIAL, utilisation, count)
    ]
    mean_s = 1 / (1 - utilisation)
    holds(interval([times.mean() for times in runs]), mean_s, within)
    for multiple in (0.5, 1.0):
        expected = math.exp(-multiple)
        holds(interval([(times > multiple * mean_s).mean() for times in runs]), expected, within)


@by_utilisation
@some_policies
def test_mg1(name: str, utilisation: float) -> None:
    """Answers of geometric length, a step a token: Pollaczek-Khinchine, p = 1 / 20 and (2 - p) / p^2 for the square."""
    count, within = UTILISATIONS[utilisation]
    runs = [
        settled(waits_s(single_server(name, GEOMETRIC.cost, drawn.workload())))
        for drawn in replications(GEOMETRIC, utilisation, count)
    ]
    step_s, p = GEOMETRIC.cost.base_s, 1 / 20
    expected = pollaczek_khinchine_s(utilisation, step_s / p, step_s**2 * (2 - p) / p**2)
    holds(interval([waits.mean() for waits in runs]), expected, 1.4 * within)


def test_the_answers_agree_with_each_other() -> None:
    """The formulas, checked against one another where one is a case of the other."""
    for rho in UTILISATIONS:
        assert bulk_wait_s(rho, 1.0, 1) == pytest.approx(pollaczek_khinchine_s(rho, 1.0, 1.0), rel=1e-6)
        assert pollaczek_khinchine_s(rho, 1.0, 2.0) == pytest.approx(1 / (1 - rho) - 1)
        assert md1_waits_at_most(rho, 1.0, 0.0) == pytest.approx(1 - rho)
    times = np.arange(0.005, 15, 0.01)
    tail = sum(1 - md1_waits_at_most(0.3, 1.0, t) for t in times.tolist())
    assert tail * 0.01 == pytest.approx(0.3 / (2 * 0.7), rel=1e-3)


@pytest.mark.parametrize("slots", [2, pytest.param(5, marks=pytest.mark.long)])
@some_policies
def test_bulk_service(name: str, slots: int) -> None:
    """Up to b who wait are served together, in 1 s however many they are: M/D[1,b]/1."""
    rate = 0.8 * slots
    runs = [
        settled(waits_s(single_server(name, CONSTANT.cost, drawn.workload(), slots)))
        for drawn in replications(CONSTANT, rate, 1_200)
    ]
    holds(interval([waits.mean() for waits in runs]), bulk_wait_s(rate, 1.0, slots), 0.25)
