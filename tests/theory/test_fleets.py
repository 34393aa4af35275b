"""Law 10 for fleets: servers of one slot with queues of their own, behind routers whose queues are known.

All servers are exponential with a mean service of one second, arrivals are Poisson with `load` a second and server.
"""

import math

import numpy as np
import pytest
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve

from simulator.results.records import Ints
from simulator.statistics import Interval
from simulator.timing.formula_cost import Linear
from tests.laws.scenarios import Scenario, make_policy
from tests.theory.queues import AMPLE, BUDGET, Service, holds, interval, sample, settled, sojourns_s

TOKENS = 100_000  # mean: one step computes the prompt, and answers with a single token


def exponential_prompts(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    return np.ceil(rng.exponential(TOKENS, count)).astype(np.int64), np.ones(count, dtype=np.int64)


SERVICE = Service(exponential_prompts, Linear(0.0, 1 / TOKENS))


def mean_sojourn_s(router: str, servers: int, load: float, count: int, seeds: range) -> Interval:
    """Mean time in the system over replications of `count` requests each."""
    found = []
    for seed in seeds:
        drawn = sample(SERVICE, load * servers, count, seed)
        scenario = Scenario(
            drawn.workload(), make_policy("continuous", 1, BUDGET), AMPLE, SERVICE.cost, replicas=servers, router=router
        )
        found.append(float(settled(sojourns_s(scenario.run().records)).mean()))
    return interval(found)


# Answers


def mmc_sojourn_s(servers: int, load: float) -> float:
    """Mean time in M/M/c, one queue for all servers: Erlang's C (1917)."""
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    return 1 + waiting / (sum(terms) + waiting) / (servers * (1 - load))


def shortest_queue_sojourn_s(load: float, most: int = 60) -> float:
    """Mean time behind two servers when each arrival joins the shorter queue (F. A. Haight, 1958).

    The Markov chain of both queues' lengths, cut at `most` each and solved for its stationary distribution; Little's
    law. It is exact but for the cut, beyond which the share of time is below 1e-7.
    """
    size = most + 1
    rates = lil_matrix((size * size, size * size))
    for a in range(size):
        for b in range(size):
            here = a * size + b
            for joins, share in _joined(a, b):
                to = a + joins[0], b + joins[1]
                if max(to) <= most:
                    rates[here, to[0] * size + to[1]] += 2 * load * share
            if a:
                rates[here, here - size] += 1.0
            if b:
                rates[here, here - 1] += 1.0
    rates.setdiag(-np.asarray(rates.sum(axis=1)).ravel())
    balance = rates.T.tolil()
    balance[-1] = 1.0  # one equation follows from the others; instead, all shares together are 1
    ones = np.append(np.zeros(size * size - 1), 1.0)
    shares = np.asarray(spsolve(balance.tocsc(), ones), dtype=np.float64).reshape(size, size)
    lengths = np.add.outer(np.arange(size), np.arange(size))
    assert shares[-1].sum() + shares[:, -1].sum() < 1e-7
    return float((shares * lengths).sum() / (2 * load))


def _joined(a: int, b: int) -> list[tuple[tuple[int, int], float]]:
    """Which of two queues an arrival joins, with what probability."""
    if a == b:
        return [((1, 0), 0.5), ((0, 1), 0.5)]
    return [((1, 0), 1.0)] if a < b else [((0, 1), 1.0)]


def d_choices_sojourn_s(load: float, choices: int) -> float:
    """Mean time behind very many servers when each arrival joins the shortest of `choices` queues drawn at random.

    The fixed point of M. Mitzenmacher (1996) and of N. Vvedenskaya, R. Dobrushin, F. Karpelevich (1996): the share of
    servers with at least i requests is load^((choices^i - 1) / (choices - 1)).
    """
    exponents = ((choices**i - choices) / (choices - 1) for i in range(1, 40))
    return math.fsum(load**exponent for exponent in exponents if exponent * math.log(load) > -700)


def test_the_answers_by_hand() -> None:
    """Sums of a few terms; M/M/1 and M/M/2 in closed form; and the order in which the three must stand."""
    assert d_choices_sojourn_s(0.5, 2) == pytest.approx(1 + 0.5**2 + 0.5**6 + 0.5**14, abs=1e-8)
    assert d_choices_sojourn_s(0.9, 2) == pytest.approx(1 + sum(0.9**e for e in (2, 6, 14, 30, 62, 126)), abs=1e-6)
    assert d_choices_sojourn_s(0.9, 3) == pytest.approx(1 + sum(0.9**e for e in (3, 12, 39, 120)), abs=1e-4)
    assert mmc_sojourn_s(1, 0.8) == pytest.approx(5.0)
    assert mmc_sojourn_s(2, 0.8) == pytest.approx(1 / (1 - 0.8**2))
    for load in (0.5, 0.8):
        assert mmc_sojourn_s(2, load) < shortest_queue_sojourn_s(load, 40) < 1 / (1 - load)


def test_joining_the_shorter_of_two_queues() -> None:
    load = 0.5
    found = mean_sojourn_s("least_loaded", 2, load, 3_000, range(12))
    holds(found, shortest_queue_sojourn_s(load, 40), within=0.1)


@pytest.mark.long
def test_the_shortest_queue_lies_between_one_queue_and_chance() -> None:
    """No router without preemption beats a common queue, and none that looks is as bad as chance, M/M/1."""
    servers, load = 5, 0.8
    shortest = mean_sojourn_s("least_loaded", servers, load, 3_000, range(12))
    chance = mean_sojourn_s("random", servers, load, 3_000, range(12))
    assert mmc_sojourn_s(servers, load) < shortest.low
    assert shortest.high < chance.low
    holds(chance, 1 / (1 - load), within=0.4)


@pytest.mark.long
def test_two_choices_of_many_servers() -> None:
    """A finite number of servers adds about 1 / servers: 200 are held against the limit within 3 %."""
    load = 0.7
    found = mean_sojourn_s("power_of_two", 200, load, 6_000, range(8))
    assert found.half_width < 0.06 * found.mean
    assert found.mean == pytest.approx(d_choices_sojourn_s(load, 2), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "within"), [(0.5, 0.02), (0.7, 0.03), (0.9, 0.12)])
def test_joining_the_shorter_of_two_queues_closely(load: float, within: float) -> None:
    found, expected = mean_sojourn_s("least_loaded", 2, load, 40_000, range(24)), shortest_queue_sojourn_s(load, 90)
    print(f"load {load}: {found}, chain {expected:.4f}")
    holds(found, expected, within)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "within"), [(0.5, 0.005), (0.7, 0.01), (0.9, 0.02)])
def test_two_choices_of_many_servers_closely(load: float, within: float) -> None:
    found = mean_sojourn_s("power_of_two", 500, load, 150_000, range(4))
    assert found.mean == pytest.approx(d_choices_sojourn_s(load, 2), rel=within)
    print(f"load {load}: {found}, limit {d_choices_sojourn_s(load, 2):.4f}")


@pytest.mark.slow
def test_the_shortest_of_many_queues_almost_never_waits() -> None:
    """With 100 servers at a load of 0.7 the shortest queue is empty nearly always: a service takes a second."""
    found = mean_sojourn_s("least_loaded", 100, 0.7, 60_000, range(4))
    holds(found, 1.0, within=0.02)
