"""Queues whose answers are known, as workloads; and what is known about them.

Every random number comes from a fixed seed: a test here passes or fails, always. Intervals are Student's, over
independent replications.
"""

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from simulator.results.records import Floats, Ints, Records
from simulator.statistics import Interval, mean_interval
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.laws.scenarios import Memory, Scenario, make_policy

SEEDS = range(24)
LEVEL = 0.999
AMPLE = Memory(1_000_001, 16, 1_000_000)
BUDGET = 10_000_000

Lengths = Callable[[np.random.Generator, int], tuple[Ints, Ints]]


@dataclass(frozen=True, slots=True)
class Service:
    """What a request asks for, (input, output) tokens each, and what a server alone with it takes for that."""

    lengths: Lengths
    cost: Linear

    def seconds(self, inputs: Ints, outputs: Ints) -> Floats:
        """One step for the prompt, one for every token but the first; of a cost without context."""
        assert self.cost.per_context_token_s == 0
        steps = self.cost.base_s * outputs
        return np.asarray(steps + self.cost.per_token_s * (inputs + outputs - 1), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Sample:
    """One replication: arrivals as a Poisson process, lengths, and the service time of each."""

    arrival_s: Floats
    inputs: Ints
    outputs: Ints
    service_s: Floats

    def workload(self, priority: Ints | None = None) -> Workload:
        none = np.zeros(len(self.arrival_s), dtype=np.int64)
        cap = np.full(len(none), int(self.outputs.max()))
        return Workload(self.arrival_s, self.inputs, self.outputs, cap, none if priority is None else priority, none)


def sample(service: Service, rate: float, count: int, seed: int) -> Sample:
    """`count` Poisson arrivals at `rate` requests a second. No two cases share their random numbers."""
    case = zlib.crc32(f"{service.lengths.__name__} {rate:.6g} {count}".encode())
    rng = np.random.default_rng([case, seed])
    arrival_s = np.cumsum(rng.exponential(1 / rate, count))
    inputs, outputs = service.lengths(rng, count)
    return Sample(arrival_s, inputs, outputs, service.seconds(inputs, outputs))


def single_server(name: str, cost: Linear, workload: Workload, slots: int = 1) -> Records:
    """A run with `slots` slots and no other limit; a static batch does not wait for more."""
    options = {"batch_timeout_s": 0.0} if name == "static" else {}
    policy = make_policy(name, slots, BUDGET, **options)
    return Scenario(workload, policy, AMPLE, cost).run().records


def waits_s(records: Records) -> Floats:
    return records.requests.scheduled_s - records.requests.arrival_s


def sojourns_s(records: Records) -> Floats:
    return records.requests.last_token_s - records.requests.arrival_s


def replications(service: Service, rate: float, count: int) -> Iterator[Sample]:
    for seed in SEEDS:
        yield sample(service, rate, count, seed)


def settled(values: Floats) -> Floats:
    """Without the first fifth, in which an empty system fills."""
    return values[len(values) // 5 :]


def interval(values: list[float]) -> Interval:
    return mean_interval(values, LEVEL)


def holds(found: Interval, expected: float, within: float) -> None:
    """The interval has the expected value in it, and is narrow enough to miss one `within` (a share) away."""
    assert found.half_width < within * expected, f"an interval of {found} proves nothing about {expected}"
    assert found.low <= expected <= found.high, f"{found} is not {expected}"


def first_come_first_served(drawn: Sample) -> tuple[Floats, Floats]:
    """Starts and ends of service at a single server, all at once (D. V. Lindley, 1952)."""
    before_s = np.cumsum(drawn.service_s) - drawn.service_s
    starts_s = before_s + np.maximum.accumulate(drawn.arrival_s - before_s)
    return starts_s, starts_s + drawn.service_s


# Answers


def pollaczek_khinchine_s(rate: float, mean_s: float, mean_square: float) -> float:
    """Mean wait of M/G/1, first come first served."""
    return rate * mean_square / (2 * (1 - rate * mean_s))


def md1_waits_at_most(rate: float, service_s: float, time_s: float) -> float:
    """P(W <= t) of M/D/1: Erlang's series (A. K. Erlang, 1909)."""
    total = 0.0
    for k in range(int(time_s / service_s) + 1):
        x = rate * (k * service_s - time_s)
        total += x**k / math.factorial(k) * math.exp(-x)
    return (1 - rate * service_s) * total


def bulk_wait_s(rate: float, service_s: float, slots: int, states: int = 300) -> float:
    """Mean wait of M/D[1,b]/1: a server that takes up to b who wait, all served together in a constant time.

    The chain of those who wait at the ends of services: n is followed by n - min(n, b) + Poisson(rate * service), and
    0 by Poisson(rate * service), as an idle server takes the next arrival alone (N. T. J. Bailey, 1954). Little's law
    turns the mean queue over time into the mean wait.
    """
    mean = rate * service_s
    arrivals = np.array([math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(states)])
    chain = np.zeros((states, states))
    for n in range(states):
        left = max(0, n - slots)
        chain[n, left:] = arrivals[: states - left]
    chain /= chain.sum(axis=1, keepdims=True)
    balance = chain.T - np.eye(states)
    balance[-1] = 1.0  # one equation follows from the others; instead, all shares together are 1
    share = np.linalg.solve(balance, np.append(np.zeros(states - 1), 1.0))
    left_waiting = float(share @ np.maximum(0, np.arange(states) - slots))
    waited = service_s * left_waiting + rate * service_s**2 / 2
    return waited / (service_s + float(share[0]) / rate) / rate
