"""Law 10 for two classes: who matters more waits as if the others were hardly there (A. Cobham, 1954, and others)."""

from functools import cache

import numpy as np
import pytest

from simulator.results.records import Floats, Ints
from simulator.timing.formula_cost import Linear
from tests.laws.scenarios import Scenario, make_policy
from tests.theory.queues import AMPLE, BUDGET, Sample, Service, holds, interval, replications, settled

STEPS = 50  # mean length of an answer: a step, at which a newcomer may displace, is a fiftieth of a service
SHARE = 0.4  # of the requests are urgent
UTILISATION = 0.75


def geometric_answers(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    return np.ones(count, dtype=np.int64), rng.geometric(1 / STEPS, count)


SERVICE = Service(geometric_answers, Linear(1 / STEPS))
MEAN_SQUARE = 2 - 1 / STEPS  # of the service time, of mean 1: (2 - p) / p^2 steps, squared seconds


@cache
def runs(name: str, **options: str) -> list[tuple[Sample, Ints, Floats]]:
    """Replications through a policy with one slot: the sample, the priorities (0 is urgent) and times in the system."""
    told = []
    for seed, drawn in enumerate(replications(SERVICE, UTILISATION, 800)):
        priority = (np.random.default_rng([5, seed]).random(800) > SHARE).astype(np.int64)
        policy = make_policy(name, 1, BUDGET, **options)
        requests = Scenario(drawn.workload(priority), policy, AMPLE, SERVICE.cost).run().records.requests
        told.append((drawn, priority, requests.last_token_s - requests.arrival_s))
    return told


def mean_by_class(told: list[tuple[Sample, Ints, Floats]], priority: int) -> list[float]:
    return [float(settled(times)[of[len(of) // 5 :] == priority].mean()) for _, of, times in told]


def test_displacing_at_once() -> None:
    """Preemptive-resume M/G/1: swapping for nothing loses nothing. The urgent see a server of their own.

    T1 = S + r1 / (1 - s1); T2 = S / (1 - s1) + (r1 + r2) / ((1 - s1)(1 - s1 - s2)), r the mean residual work of each
    class, s its utilisation. Displacing waits for the end of a step, which adds half of one at most.
    """
    told = runs("preemptive", preemption_mode="swap")
    urgent, other = UTILISATION * SHARE, UTILISATION * (1 - SHARE)
    residual1, residual = urgent * MEAN_SQUARE / 2, UTILISATION * MEAN_SQUARE / 2
    first = 1 + residual1 / (1 - urgent)
    second = 1 / (1 - urgent) + residual / ((1 - urgent) * (1 - urgent - other))
    half_a_step = 0.5 / STEPS * UTILISATION
    holds(interval(mean_by_class(told, 0)), first + half_a_step, within=0.1)
    holds(interval(mean_by_class(told, 1)), second, within=0.25)


def test_waiting_for_the_end_of_a_service() -> None:
    """Nonpreemptive priorities, A. Cobham 1954: an order of the queue that displaces nobody who runs."""
    told = runs("chunked_prefill", order="priority")
    urgent = UTILISATION * SHARE
    residual = UTILISATION * MEAN_SQUARE / 2
    holds(interval(mean_by_class(told, 0)), 1 + residual / (1 - urgent), within=0.1)
    holds(interval(mean_by_class(told, 1)), 1 + residual / ((1 - urgent) * (1 - UTILISATION)), within=0.25)


@pytest.mark.parametrize("name", ["preemptive", "chunked_prefill"])
def test_work_is_not_made_by_priorities(name: str) -> None:
    """Whoever is served first, the server is done with everything at the same time (Kleinrock's conservation law)."""
    options = {"preemption_mode": "swap"} if name == "preemptive" else {"order": "priority"}
    for drawn, _, times in runs(name, **options)[:4]:
        done_s = np.sort(drawn.arrival_s + times)
        before_s = np.cumsum(drawn.service_s) - drawn.service_s
        alone_s = before_s + np.maximum.accumulate(drawn.arrival_s - before_s) + drawn.service_s
        busy_ends = np.append(drawn.arrival_s[1:] > alone_s[:-1], True)
        assert np.isin(np.round(alone_s[busy_ends], 6), np.round(done_s, 6)).all()
