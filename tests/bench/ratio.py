"""The cost of a request in SimPy timeouts: a measure of speed that a faster machine does not change.

`python -m tests.bench.ratio` prints, for each policy and kind of step costs, how many bare `env.timeout(1)` events this
machine processes in the CPU time of one request. The loop is `simulate` as a whole: arrivals, engine, records. The
process is `batchlab run` from start to run folder. Both are alternated with the timeouts in one run, so that a busy
machine burdens all three, and of each the best round counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from itertools import product
from pathlib import Path

import simpy

from tests.bench.test_start import children_s
from tests.bench.workloads import COSTS, LINEAR, normal_lengths, serve_on_h200
from tests.command import ROOT, START

POLICIES = ("chunked_prefill", "continuous", "static", "preemptive", "sglang")
RATES = (10.0, 100.0)
TIMEOUTS = 50_000

LENGTHS = "{dist: normal, mean: 512, sd: 256, min: 2}"
SCENARIO = f"""\
name: ratio
model: llama-3.1-8b
hardware: {{gpu: h200}}
cost: %(cost)s
workload:
  requests: %(requests)d
  classes:
    - {{name: all, arrival: {{process: poisson, rate: %(rate)g}}, input: {LENGTHS}, output: {LENGTHS}}}
engine: {{policy: %(policy)s, max_num_seqs: 256, max_num_batched_tokens: 2048}}
"""


def timeouts() -> None:
    """A SimPy process that only waits."""

    def wait(env: simpy.Environment) -> Generator[simpy.Event, object, None]:
        for _ in range(TIMEOUTS):
            yield env.timeout(1)

    env = simpy.Environment()
    env.process(wait(env))
    env.run()


def spent_s(clock: Callable[[], float], work: Callable[[], object]) -> float:
    """CPU seconds of `work` by a clock that counts them."""
    before_s = clock()
    work()
    return clock() - before_s


def whole_process(folder: Path, requests: int, policy: str, rate: float, cost: str) -> Callable[[], object]:
    """`batchlab run` of such requests in a process of its own, ready to be started."""
    scenario = folder / f"{policy}-{rate:g}-{cost}.yaml"
    priced = {"kind": cost, **(LINEAR if cost == "linear" else {})}
    values = {"cost": json.dumps(priced), "requests": requests, "rate": rate, "policy": policy}
    scenario.write_text(SCENARIO % values, encoding="utf-8")
    command = [*START, "run", str(scenario), "--quiet", "--overwrite"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return lambda: subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", nargs="*", default=POLICIES)
    parser.add_argument("--costs", nargs="*", default=("linear", "profile"), choices=tuple(COSTS))
    parser.add_argument("--rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--requests", type=int, default=4_000, help="of a run of the loop")
    parser.add_argument("--process-requests", type=int, default=10_000, help="of a whole process; 0: none")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    print(f"{'policy':16} {'costs':9} {'rate':>5} {'loop':>8} {'process':>8}   SimPy timeouts a request", flush=True)
    best_event_s = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        for policy, cost, rate in product(chosen.policies, chosen.costs, chosen.rates):
            loop = serve_on_h200(normal_lengths(chosen.requests, rate), policy, cost)
            works: list[tuple[Callable[[], float], Callable[[], object], int]] = [
                (time.process_time, timeouts, TIMEOUTS),
                (time.process_time, loop, chosen.requests),
            ]
            if chosen.process_requests:
                process = whole_process(Path(folder), chosen.process_requests, policy, rate, cost)
                works.append((children_s, process, chosen.process_requests))
            rounds = [[spent_s(clock, work) / n for clock, work, n in works] for _ in range(chosen.rounds)]
            event_s, *each_s = map(min, zip(*rounds, strict=True))
            best_event_s = min(best_event_s, event_s)
            ratios = " ".join(f"{seconds / event_s:8.1f}" for seconds in each_s)
            print(f"{policy:16} {cost:9} {rate:3g}/s {ratios}", flush=True)
    print(f"Python {sys.version.split()[0]}, SimPy {simpy.__version__}: {1 / best_event_s:,.0f} timeouts a CPU second")


if __name__ == "__main__":
    main()
