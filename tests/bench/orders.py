"""The cost of a request by policy and by queue order, against `chunked_prefill` and first come, first served.

`python -m tests.bench.orders` prints a row for each policy of `simulator.policies` and each order of
`simulator.queues`: CPU time of a request as a multiple of what it takes under `chunked_prefill` with fcfs, at 10 and
100 requests a second and in hard overload, where thousands wait. Where an order needs a prefix cache, that of fcfs has
one too. Both runs take turns in one process, and of each the best round counts. The last column is the cost of a
request in a run of twice as many, in overload, over that in this one: 2 where it grows with the queue.

llama-3.1-8b on an H200, 256 slots, linear step costs, about 512 tokens in and out; with `--classes 4` the requests are
of four classes, each of a priority of its own.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from simulator.hardware.kv import MemorySettings
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.memory.radix_cache import RadixCache
from simulator.policies import built_in_policies, load_policy
from simulator.queues import QUEUES
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.bench.workloads import GPU, LINEAR, MODEL, normal_lengths

RATES = (10.0, 100.0, 4900.0)
BASE = "chunked_prefill"


class Case(NamedTuple):
    """A policy with an order; None is its own."""

    policy: str
    order: str | None = None
    cached: bool = False


def cases() -> list[Case]:
    """Every policy with its own order, then every order that can be chosen."""
    found = [Case(policy) for policy in built_in_policies()]
    for name, kind in QUEUES.items():
        if not kind.is_internal and name != "fcfs":
            policy = "sglang" if kind.needs_radix_tree else BASE
            found.append(Case(policy, name, kind.needs_prefix_cache))
    return found


def in_classes(workload: Workload, classes: int) -> Workload:
    """The workload's requests in so many classes, drawn with equal chances, the first the most important."""
    drawn = np.random.default_rng(1).integers(0, classes, len(workload))
    names = tuple(f"class-{place}" for place in range(classes))
    return replace(workload, class_index=drawn, class_names=names, priority=drawn)


def serve(case: Case, workload: Workload) -> Callable[[], float]:
    """A run of this case; calling it gives its CPU seconds a request."""
    kv = MemorySettings(MODEL, GPU).kv_cache()
    order = {} if case.order is None else {"order": case.order}
    blocks: Callable[[int, int], KVBlocks] = BlockLedger
    if case.cached:
        blocks = partial(RadixCache if case.policy == "sglang" else PrefixLedger, block_size=kv.block_size)

    def run() -> float:
        began_s = time.process_time()
        simulate(
            workload,
            make_policy=lambda: load_policy(case.policy, {"max_num_seqs": 256, **order}),
            kv=kv,
            cost=Linear(**LINEAR),
            make_blocks=blocks,
        )
        return (time.process_time() - began_s) / len(workload)

    return run


def best(rounds: int, *runs: Callable[[], float]) -> list[float]:
    """The least of each of these, which take turns."""
    return [min(spent) for spent in zip(*[[run() for run in runs] for _ in range(rounds)], strict=True)]


def row(case: Case, requests: int, rounds: int, classes: int) -> str:
    """The case's line of the table, in Markdown."""
    base = Case(case.policy if case.cached else BASE, "fcfs", case.cached)
    ratios = []
    for rate in RATES:
        work = in_classes(normal_lengths(requests if rate > 100 else requests // 4, rate), classes)
        base_s, own_s = best(rounds, serve(base, work), serve(case, work))
        ratios.append(f"{own_s / base_s:.2f} ({1e6 * own_s:.0f})")
    longer = in_classes(normal_lengths(2 * requests, RATES[-1]), classes)
    twice_s, once_s = best(rounds, serve(case, longer), serve(case, work))
    name = f"`{case.policy}`" + (", cached" if case.cached else "")
    order = f"`{case.order}`" if case.order else ""
    return f"| {name} | {order} | {' | '.join(ratios)} | {twice_s / once_s:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="in overload; a quarter at 10 and 100 a second")
    parser.add_argument("--classes", type=int, default=1, help="of requests, each of a priority of its own")
    parser.add_argument("--policies", nargs="*", help="only these in their own order")
    parser.add_argument("--orders", nargs="*", help="only these orders")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    found = cases()
    if chosen.policies is not None or chosen.orders is not None:
        policies, orders = chosen.policies or (), chosen.orders or ()
        found = [case for case in found if (case.order in orders if case.order else case.policy in policies)]
    print(f"CPU time of a request over that of `{BASE}` with fcfs (microseconds)\n")
    print(f"| policy | order | {' | '.join(f'{rate:g}/s' for rate in RATES)} | twice as long |")
    print("| --- | --- | ---: | ---: | ---: | ---: |", flush=True)
    for case in found:
        print(row(case, chosen.requests, chosen.rounds, chosen.classes), flush=True)


if __name__ == "__main__":
    main()
