"""`python -m tests.bench.whole`: SimPy timeouts for all that is around the loop, and CPU and memory beside.

Prefix caching by what prompts share, routers over 8 replicas and 1,000 behind `least_loaded`, the start of `batchlab
run`, a row of a trace read, a request written into a run folder. Each row is a process of its own, in which it takes
turns with the timeouts; of each the best round counts.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from scenarios.runs.runner import run as run_scenario
from scenarios.traces import read_trace
from simulator import core_name
from simulator.fleet.group import ReplicaGroup
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.policies import load_policy
from simulator.simulate import simulate_fleet
from simulator.timing.formula_cost import Linear
from tests.bench.fleet import chat
from tests.bench.prefix_cache import CONTENTS, SIZE, cpu_s, groups
from tests.bench.ratio import SCENARIO, TIMEOUTS, Row, spent_s, timeouts, whole_process
from tests.bench.test_start import children_s
from tests.bench.workloads import LINEAR, normal_lengths
from tests.laws.scenarios import Memory

Work = tuple[Callable[[], float], Callable[[], object], int]
"""A clock of CPU seconds, what is to be measured, and how many of what a row counts it does."""

BLOCKS = 60_000
ROUTERS = ("round_robin", "least_loaded", "weighted", "prefix_affinity", "dynamo_kv")
PLAIN = {"native": "{s},512,512", "azure": "2023-11-16 18:{m:02}:{s:09.6f}0,512,512"}
HEADERS = {"native": "arrival_time_s,input_tokens,output_tokens", "azure": "TIMESTAMP,ContextTokens,GeneratedTokens"}


def cached(content: str, rate: float, cache: bool) -> Work:
    """Requests of one replica, with a prefix cache or without."""
    workload = normal_lengths(2000, rate)
    make = CONTENTS[content]
    if make is not None:
        workload = replace(workload, content=make(workload))
    kind: Callable[[int, int], KVBlocks] = partial(PrefixLedger, block_size=SIZE) if cache else BlockLedger
    return time.process_time, lambda: cpu_s(workload, BLOCKS, kind, False), len(workload)


def routed(router: str, replicas: int, requests: int) -> Work:
    """Requests of a fleet, ten a second and replica; over 8 replicas with groups of prompts and prefix caches."""
    workload = chat(requests, 10.0 * replicas)
    caches = replicas == 8
    if caches:
        workload = replace(workload, content=groups(workload))
    policy = partial(load_policy, "chunked_prefill", {"max_num_seqs": 256, "max_num_batched_tokens": 2048})
    make_blocks: Callable[[int, int], KVBlocks] = partial(PrefixLedger, block_size=SIZE) if caches else BlockLedger
    group = ReplicaGroup(policy, Memory(20_000, SIZE), Linear(**LINEAR), make_blocks=make_blocks, replicas=replicas)
    return time.process_time, lambda: simulate_fleet(workload, [group], router=router), requests


def started(folder: Path) -> Work:
    """`batchlab run` of ten requests, from start to run folder."""
    work = whole_process(folder, 10, Row("chunked_prefill", "linear", "10", 1, "pure"))
    work()  # leaves byte code
    return children_s, work, 1


def read(folder: Path, kind: str) -> Work:
    """Rows of a CSV file."""
    rows = 50_000
    file = folder / f"{kind}.csv"
    lines = (PLAIN[kind].format(s=row * 0.001, m=0) for row in range(rows))
    file.write_text("\n".join([HEADERS[kind], *lines]) + "\n", encoding="utf-8")
    return time.process_time, lambda: read_trace(file), rows


def written(folder: Path) -> Work:
    """Requests of a run that is written into a folder."""
    requests = 10_000
    values = {"cost": json.dumps({"kind": "linear", **LINEAR}), "requests": requests, "rate": 10}
    scenario = folder / "written.yaml"
    scenario.write_text(SCENARIO % {**values, "policy": "chunked_prefill"}, encoding="utf-8")
    result, number = run_scenario(scenario), count()
    return time.process_time, lambda: result.save(folder / str(next(number))), requests


@contextmanager
def works() -> Iterator[dict[str, Callable[[], Work]]]:
    """What each row measures, by its name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, Callable[[], Work]] = {}
        for rate in (10.0, 100.0):
            found[f"no prefix cache, {rate:g}/s"] = partial(cached, "none", rate, False)
            for content in CONTENTS:
                found[f"prefix cache, {content}, {rate:g}/s"] = partial(cached, content, rate, True)
        for router in ROUTERS:
            found[f"{router}, 8 replicas with prefix caches"] = partial(routed, router, 8, 8_000)
        for replicas in (1, 1_000):
            found[f"least_loaded, replicas: {replicas}"] = partial(routed, "least_loaded", replicas, 40_000)
        found["`batchlab run`, 10 requests: the process"] = partial(started, folder)
        for kind in HEADERS:
            found[f"a row of a trace ({kind}, CSV)"] = partial(read, folder, kind)
        found["a request in a run folder"] = partial(written, folder)
        yield found


def measure(name: str, rounds: int) -> str:
    """A row of the table, measured in this process."""
    with works() as found:
        clock, work, each = found[name]()
        pairs = [(spent_s(time.process_time, timeouts), spent_s(clock, work)) for _ in range(rounds)]
    event_s, seconds = (min(column) for column in zip(*pairs, strict=True))
    event_s, seconds = event_s / TIMEOUTS, seconds / each
    mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"| {name} | {seconds / event_s:,.1f} | {seconds * 1e6:,.1f} | {mb:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--row", help=argparse.SUPPRESS)  # one, in this process
    chosen = parser.parse_args()
    if chosen.row:
        print(measure(chosen.row, chosen.rounds))
        return
    print(f"# {core_name()}\n\n| what | timeouts | us | MB |\n| --- | ---: | ---: | ---: |", flush=True)
    with works() as found:
        names = [name for name in found if chosen.only in name]
    for name in names:
        command = [sys.executable, "-m", "tests.bench.whole", "--rounds", str(chosen.rounds), "--row", name]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
