"""`python -m tests.theory.coverage [REPLICATIONS]`: how often the 95 % intervals hold the answer of a known queue.

The queue is M/M/1 with a mean service of one second, started empty: its mean time in the system is 1 / (1 - load), and
that time is exponential, which gives the percentiles. Runs are Lindley's recursion, or go through the engine and the
metrics (`simulated`). Every interval is made with and without the warm-up that MSER-5 cuts off. An interval
without an upper end is one that says that the run is too short; it holds the answer if its lower end does.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.metrics.confidence import run_percentiles
from simulator.metrics.warmup_cut import warmup_cut
from simulator.results.records import Floats, Ints
from simulator.statistics import mean_interval, mser5, paired_difference, percentile_interval
from simulator.timing.formula_cost import Linear
from tests.batch_means import batch_means_interval
from tests.theory.queues import Service, sample, single_server

REPLICATIONS = 200
LOAD = 0.5
TOKENS = 100_000  # a mean prompt, computed in one step of a second
FASTER = 0.9  # service times of the second server, which serves the same requests
RUN, SIMULATED_RUN, SEEDS, SEED_RUN = 20_000, 6_000, 8, 2_500  # requests; runs of a comparison, and requests of each

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of interval of a quantity that is known: `ends(replication, cut)` gives one."""

    name: str
    answer: float
    ends: Callable[[int, bool], Ends]

    def coverage(self, replications: int, *, cut: bool) -> tuple[float, int]:
        """The share of intervals that hold the answer, and the number of those without an upper end."""
        found = [self.ends(each, cut) for each in range(replications)]
        held = sum(low <= self.answer <= high for low, high in found)
        return held / replications, sum(math.isinf(high) for _, high in found)


def times_in_system_s(seed: list[int], count: int, slowness: float = 1.0, load: float = LOAD) -> Floats:
    """Of a run of the queue: waiting and service of each request (D. V. Lindley, 1952)."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / load, count))
    service_s = rng.exponential(slowness, count)
    before_s = np.cumsum(service_s) - service_s
    starts_s = before_s + np.maximum.accumulate(arrival_s - before_s)
    return np.asarray(starts_s + service_s - arrival_s, dtype=np.float64)


def mean_s(slowness: float = 1.0, load: float = LOAD) -> float:
    """The mean time in the system."""
    return 1 / (1 / slowness - load)


def percentile_s(percent: float, load: float = LOAD) -> float:
    """A percentile of the time in the system."""
    return -math.log(1 - percent / 100) * mean_s(load=load)


def settled(values: Floats, cut: bool) -> Floats:
    """Without its warm-up, if it is to be cut."""
    return values[mser5(values).count :] if cut else values


def fast_cases() -> list[Case]:
    """Intervals of vectorised runs."""

    def of_run(seed: int, cut: bool) -> Floats:
        return settled(times_in_system_s([1, seed], RUN), cut)

    def batches(seed: int, cut: bool) -> Ends:
        found = batch_means_interval(of_run(seed, cut))
        return found.low, found.high

    def percentile(percent: int) -> Callable[[int, bool], Ends]:
        def ends(seed: int, cut: bool) -> Ends:
            found = percentile_interval(of_run(seed, cut), percent)
            return found.low, found.high

        return ends

    def means(replication: int, cut: bool, *slowness: float) -> list[list[float]]:
        """Over the seeds, for each server; one cut for all runs, the longest of those with the first seed."""
        runs = [
            [times_in_system_s([2, replication, seed], SEED_RUN, each) for seed in range(SEEDS)] for each in slowness
        ]
        warmup = max(mser5(of_server[0]).count for of_server in runs) if cut else 0
        return [[float(run[warmup:].mean()) for run in of_server] for of_server in runs]

    def over_seeds(replication: int, cut: bool) -> Ends:
        found = mean_interval(means(replication, cut, 1.0)[0])
        return found.low, found.high

    def paired(replication: int, cut: bool) -> Ends:
        slow, fast = means(replication, cut, 1.0, FASTER)
        found = paired_difference(slow, fast)
        return found.low, found.high

    return [
        Case(f"mean over {SEEDS} seeds, Student's t", mean_s(), over_seeds),
        Case(f"paired difference over {SEEDS} seeds", mean_s() - mean_s(FASTER), paired),
        Case("mean of one run, batch means", mean_s(), batches),
        *(Case(f"p{percent} of one run", percentile_s(percent), percentile(percent)) for percent in (50, 95, 99)),
    ]


def exponential_prompts(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    """Prompts that take a second on average, and answers of one token."""
    return np.ceil(rng.exponential(TOKENS, count)).astype(np.int64), np.ones(count, dtype=np.int64)


def simulated_cases() -> list[Case]:
    """Intervals of runs of the simulator, as its users get them."""
    service = Service(exponential_prompts, Linear(0.0, 1 / TOKENS))

    def mean_and_p95(seed: int, cut: bool) -> dict[str, Ends]:
        drawn = sample(service, LOAD, SIMULATED_RUN, seed)
        records = single_server("continuous", service.cost, drawn.workload())
        warmup_s = warmup_cut(records).cut_s if cut else 0.0
        requests = records.requests  # all finish, in the order of their arrival
        e2el_ms = 1e3 * (requests.last_token_s - requests.arrival_s)
        mean = batch_means_interval(e2el_ms[requests.arrival_s >= warmup_s])
        p95 = run_percentiles(records, ["p95_e2el_ms"], warmup_s=warmup_s)["p95_e2el_ms"]
        return {"mean": (mean.low, mean.high), "p95": (p95.low, p95.high)}

    kept: dict[tuple[int, bool], dict[str, Ends]] = {}

    def ends(name: str) -> Callable[[int, bool], Ends]:
        def of(seed: int, cut: bool) -> Ends:
            if (seed, cut) not in kept:
                kept[seed, cut] = mean_and_p95(seed, cut)
            return kept[seed, cut][name]

        return of

    return [
        Case("simulated run: mean, batch means", 1e3 * mean_s(), ends("mean")),
        Case("simulated run: p95", 1e3 * percentile_s(95), ends("p95")),
    ]


def main() -> None:
    """The table."""
    replications = int(sys.argv[1]) if len(sys.argv) > 1 else REPLICATIONS
    print(f"M/M/1, load {LOAD:g}; {replications:,} replications; share of 95 % intervals that hold the answer\n")
    print(f"{'':38}  whole run  without warm-up  too short")
    for case in [*fast_cases(), *simulated_cases()]:
        (whole, few), (cut, few_cut) = (case.coverage(replications, cut=cut) for cut in (False, True))
        print(f"{case.name:38}  {whole:9.1%}  {cut:15.1%}  {few:4} / {few_cut}", flush=True)


if __name__ == "__main__":
    main()
