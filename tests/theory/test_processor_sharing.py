"""Law 10 for many slots: where a token costs the same in any company, the batch is a shared processor."""

import numpy as np
import pytest

from simulator.results.records import Ints
from simulator.timing.formula_cost import Linear
from tests.theory.queues import SEEDS, Service, holds, interval, sample, settled, single_server, sojourns_s

TOKENS = 200  # mean: a token, the quantum, is that part of a service
PER_TOKEN = Linear(0.0, 1 / TOKENS)


def constant_answers(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    return np.ones(count, dtype=np.int64), np.full(count, TOKENS)


def geometric_answers(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    return np.ones(count, dtype=np.int64), rng.geometric(1 / TOKENS, count)


def two_point_answers(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """Mostly short, now and then very long: the variance is eleven times that of constant ones."""
    return np.ones(count, dtype=np.int64), np.where(rng.random(count) < 0.95, 105, 2005)


ANSWERS = {"constant": constant_answers, "geometric": geometric_answers, "two lengths": two_point_answers}


@pytest.mark.parametrize(
    "answers", ["geometric", *(pytest.param(name, marks=pytest.mark.long) for name in ("constant", "two lengths"))]
)
@pytest.mark.parametrize(
    "name", ["continuous", *(pytest.param(name, marks=pytest.mark.long) for name in ("chunked_prefill", "preemptive"))]
)
def test_time_in_the_system_does_not_depend_on_the_distribution(name: str, answers: str) -> None:
    """M/G/1-PS: the mean time in the system is S / (1 - rho) whatever the lengths' distribution (Kleinrock 1967).

    The quantum is no longer than 1 / TOKENS of a service for each of those served, 1 / (1 - rho) of them.
    """
    utilisation = 0.6
    service = Service(ANSWERS[answers], PER_TOKEN)
    means, slopes = [], []
    for seed in SEEDS:
        drawn = sample(service, utilisation, 500, seed)
        records = single_server(name, PER_TOKEN, drawn.workload(), slots=10_000)
        times, sizes = settled(sojourns_s(records)), settled(drawn.service_s)
        means.append(float(times.mean()))
        slopes.append(float(np.dot(times, sizes) / np.dot(sizes, sizes)))
    expected = 1 / (1 - utilisation)
    assert abs(interval(means).mean / expected - 1) < 0.1
    holds(interval(means), expected, within=0.25)
    if answers != "constant":
        # And each size for itself: twice as long takes twice the time.
        holds(interval(slopes), expected, within=0.25)


@pytest.mark.parametrize("name", ["continuous", "chunked_prefill", "preemptive"])
def test_a_crowd_shares_alike(name: str) -> None:
    """Ten at once, a second each if alone: nobody is done before the end, and all are done when the work is."""
    drawn = sample(Service(constant_answers, PER_TOKEN), 1.0, 10, seed=1)
    workload = drawn.workload()
    workload.arrival_s[:] = 0.0
    requests = single_server(name, PER_TOKEN, workload, slots=10).requests
    assert (requests.last_token_s == requests.last_token_s[0]).all()
    assert requests.last_token_s[0] == pytest.approx(10.0)
