"""CPU seconds a request of a fleet against those of one replica under the same load of each.

`python -m tests.bench.fleet --replicas 1000 --rate 10 --seconds 600` prints one line a run. The runs alternate, so that
a busy machine burdens both; each is a process of its own, whose peak memory is told too.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

from simulator.fleet.group import ReplicaGroup
from simulator.policies import load_policy
from simulator.simulate import simulate_fleet
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.columns import workload_of
from tests.laws.scenarios import Memory


def chat(requests: int, rate: float) -> Workload:
    """Poisson arrivals, lognormal lengths: a median of 350 tokens in, of 130 out."""
    rng = np.random.Generator(np.random.PCG64(0))

    def lengths(median: float, sigma: float, most: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        drawn = np.rint(median * np.exp(sigma * rng.standard_normal(requests)))
        return np.clip(drawn, 1, most).astype(np.int64)

    arrival_s = np.cumsum(rng.exponential(1 / rate, requests))
    return workload_of(arrival_s, lengths(350, 1.0, 8192), lengths(130, 0.8, 1000), 1000)


def measure(replicas: int, rate: float, requests: int, router: str) -> dict[str, float]:
    """One run: `rate` is that of each replica."""
    workload = chat(requests, rate * replicas)
    policy = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    group = ReplicaGroup(
        lambda: load_policy("chunked_prefill", policy), Memory(20_000, 16), Linear(0.006, 2e-5, 2e-8), replicas=replicas
    )
    before_s = time.process_time()
    records = simulate_fleet(workload, [group], router=router).records
    spent_s = time.process_time() - before_s
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "replicas": replicas,
        "requests": requests,
        "cpu_s": round(spent_s, 2),
        "us_per_request": round(1e6 * spent_s / requests, 2),
        "steps": records.num_steps,
        "peak_mib": round(mib),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second and replica")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--alone", type=int, default=100_000, help="requests of the run of one replica")
    parser.add_argument("--router", default="least_loaded")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, type=int, metavar=("REPLICAS", "REQUESTS"), help="one run, in this process")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one[0], chosen.rate, chosen.one[1], chosen.router)))
        return
    many = round(chosen.replicas * chosen.rate * chosen.seconds)
    for _ in range(chosen.rounds):
        for replicas, requests in ((1, chosen.alone), (chosen.replicas, many)):
            own = ["--rate", str(chosen.rate), "--router", chosen.router, "--one", str(replicas), str(requests)]
            subprocess.run([sys.executable, "-m", "tests.bench.fleet", *own], check=True)


if __name__ == "__main__":
    main()
