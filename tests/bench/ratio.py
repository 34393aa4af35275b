"""The cost of a request in SimPy timeouts: a measure of speed that a faster machine does not change.

`python -m tests.bench.ratio` prints, for each policy, kind of step costs, traffic and number of replicas, how many bare
`env.timeout(1)` events this machine processes in the CPU time of one request. The loop is `simulate` as a whole:
arrivals, engine, records. The process is `batchlab run` from start to run folder. Both are alternated with the
timeouts in one run, so that a busy machine burdens all of them, and of each the best round counts.

Each row is a process of its own, on the sources and, where this is an installation with the compiled core (`make
compiled-test` leaves one in build/compiled), on that too. A row is written as it comes; with `--out FILE` rows that the
file has are not measured again, so that the table can be made in parts.
"""

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
from typing import NamedTuple

import simpy

from simulator import is_compiled
from simulator.workload import Workload
from tests.bench.test_start import as_installed, children_s
from tests.bench.workloads import COSTS, LINEAR, azure_chat, normal_lengths, serve_on_h200
from tests.command import START

POLICIES = ("chunked_prefill", "continuous", "static", "preemptive", "sglang")
TRAFFIC = ("10", "100", "azure")
CORES = ("pure", "compiled")
TIMEOUTS = 50_000
FEWEST = 40  # requests of a replica


class Row(NamedTuple):
    """What is measured; `traffic` is requests a second and replica, or the Azure chat hour of 2023 twice as fast."""

    policy: str
    cost: str
    traffic: str
    replicas: int
    core: str


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


def arrivals(row: Row, requests: int) -> Workload:
    """The traffic of all replicas together."""
    if row.traffic == "azure":
        return azure_chat(rate_scale=2.0 * row.replicas)
    return normal_lengths(max(requests, FEWEST * row.replicas), float(row.traffic) * row.replicas)


def whole_process(folder: Path, requests: int, row: Row) -> Callable[[], object]:
    """`batchlab run` of such requests in a process of its own, ready to be started."""
    scenario = folder / "ratio.yaml"
    priced = {"kind": row.cost, **(LINEAR if row.cost == "linear" else {})}
    values = {"cost": json.dumps(priced), "requests": requests, "rate": float(row.traffic), "policy": row.policy}
    scenario.write_text(SCENARIO % values, encoding="utf-8")
    command = [*START, "run", str(scenario), "--quiet", "--overwrite"]
    environment = as_installed(folder / "byte-code")
    return lambda: subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def measure(row: Row, requests: int, process_requests: int, rounds: int) -> dict[str, float]:
    """The best of so many rounds, in this process: timeouts a request, and timeouts a CPU second."""
    workload = arrivals(row, requests)
    loop = serve_on_h200(workload, row.policy, row.cost, row.replicas)
    works: list[tuple[Callable[[], float], Callable[[], object], int]] = [
        (time.process_time, timeouts, TIMEOUTS),
        (time.process_time, loop, len(workload)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        if process_requests and row.traffic != "azure" and row.replicas == 1:
            works.append((children_s, whole_process(Path(folder), process_requests, row), process_requests))
        spent = [[spent_s(clock, work) / n for clock, work, n in works] for _ in range(rounds)]
    event_s, *each_s = map(min, zip(*spent, strict=True))
    ratios = dict(zip(("loop", "process"), (seconds / event_s for seconds in each_s), strict=False))
    return {"timeouts_per_s": 1 / event_s, **ratios}


def line(row: Row, found: dict[str, float]) -> str:
    """A row of the table, in Markdown."""
    process = f"{found['process']:.0f}" if "process" in found else ""
    return f"| {' | '.join(map(str, row))} | {found['loop']:.1f} | {process} | {found['timeouts_per_s'] / 1e6:.2f} |"


def measured_in(out: Path | None, named: int = 5) -> set[str]:
    """The first `named` cells of each row that a file has: without what was measured."""
    lines = out.read_text(encoding="utf-8").splitlines() if out is not None and out.exists() else []
    return {"|".join(text.split("|")[1 : named + 1]) for text in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="*", default=POLICIES)
    parser.add_argument("--costs", nargs="*", default=("linear", "profile"), choices=tuple(COSTS))
    parser.add_argument("--traffic", nargs="*", default=TRAFFIC[:2], help="requests per second and replica, or azure")
    parser.add_argument("--replicas", nargs="*", type=int, default=(1,))
    parser.add_argument("--cores", nargs="*", default=CORES if is_compiled() else CORES[:1], choices=CORES)
    parser.add_argument("--requests", type=int, default=4_000, help="of a run of the loop")
    parser.add_argument("--process-requests", type=int, default=0, help="of a whole process; 0: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a file that rows are added to, as they come")
    parser.add_argument("--row", nargs=5, help=argparse.SUPPRESS)  # one, in this process
    chosen = parser.parse_args()
    sizes = chosen.requests, chosen.process_requests, chosen.rounds
    if chosen.row:
        policy, cost, traffic, replicas, core = chosen.row
        print(json.dumps(measure(Row(policy, cost, traffic, int(replicas), core), *sizes)))
        return
    done = measured_in(chosen.out)
    print(f"SimPy {simpy.__version__} timeouts a request, Python {sys.version.split()[0]}\n")
    print("| policy | costs | traffic | replicas | core | loop | process | million timeouts a s |")
    print("| --- | --- | --- | ---: | --- | ---: | ---: | ---: |", flush=True)
    for values in product(chosen.policies, chosen.costs, chosen.traffic, chosen.replicas, chosen.cores):
        row = Row(*values)
        if "|".join(f" {value} " for value in row) in done:
            continue
        own = ["--requests", str(sizes[0]), "--process-requests", str(sizes[1]), "--rounds", str(sizes[2])]
        command = [sys.executable, "-m", "tests.bench.ratio", *own, "--row", *map(str, row)]
        environment = {**os.environ, "BATCHLAB_PURE": str(int(row.core == "pure"))}
        answer = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        if answer.returncode:
            print(f"left out: {' '.join(map(str, row))}: {answer.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            continue
        text = line(row, json.loads(answer.stdout))
        print(text, flush=True)
        if chosen.out is not None:
            with chosen.out.open("a", encoding="utf-8") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
