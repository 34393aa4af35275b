"""`python -m tests.bench.prefix_cache`: what a prefix cache costs, in CPU microseconds a request, and as a ratio.

`chunked_prefill` with 256 slots and linear costs serves about 512 tokens in and 512 out, with and without a cache in
turns; of each the best round counts. `none`: content that never repeats. `groups`: prompts begin with one of seven
texts of 256 tokens. `conversations`: five requests each go on with what was said. `hashes`: a trace's, of 64-token
blocks. `token ids`: as the groups, answers included. With 60,000 blocks there is room for all; with 2,500 the queue is
full, and its head waits for blocks. What is found in the cache is not computed, so that such runs have other steps too.
With `--instructions` machine instructions are counted instead of CPU time, thousands a request (valgrind).
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from scenarios.traces.columns import OneEach
from simulator import is_compiled
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.policies import load_policy
from simulator.request import PromptContent
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.bench.instructions import again_counted, instructions, is_counted
from tests.bench.workloads import LINEAR, normal_lengths
from tests.laws.scenarios import Memory

SIZE = 16  # tokens of a block
GROUPS, SHARED = 7, 256  # texts that prompts begin with, and their tokens
TURNS = 5
TRAFFIC = ((10.0, 60_000), (100.0, 60_000), (100.0, 2_500))


def groups(workload: Workload) -> list[PromptContent]:
    return [PromptContent(prefix_group=f"text {row % GROUPS}", prefix_tokens=SHARED) for row in range(len(workload))]


def conversations(workload: Workload) -> list[PromptContent]:
    count = -(-len(workload) // TURNS)
    return [PromptContent(conversation=f"conversation {row % count}") for row in range(len(workload))]


def hashes(workload: Workload) -> list[PromptContent]:
    made = []
    for row, tokens in enumerate(workload.input_tokens.tolist()):
        own = range(100 * (row + 1), 100 * (row + 1) + -(-tokens // 64))
        made.append(PromptContent(block_hashes=(row % GROUPS, *own[1:]), hash_block_size=64))
    return made


def token_ids(workload: Workload) -> list[PromptContent]:
    """As they are read from a trace: equal numbers are one object each."""
    rng, one_each = np.random.default_rng(1), OneEach()
    texts = [rng.integers(0, 30_000, SHARED) for _ in range(GROUPS)]
    made = []
    lengths = zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    for row, (prompt, answer) in enumerate(lengths):
        said = np.concatenate((texts[row % GROUPS], rng.integers(0, 30_000, prompt)))[:prompt]
        answered = one_each.of(rng.integers(0, 30_000, answer).tolist())
        made.append(PromptContent(prompt_token_ids=one_each.of(said.tolist()), output_token_ids=answered))
    return made


CONTENTS: dict[str, Callable[[Workload], list[PromptContent]] | None] = {
    "none": None,
    "groups": groups,
    "conversations": conversations,
    "hashes": hashes,
    "token ids": token_ids,
}


def cpu_s(workload: Workload, num_blocks: int, make_blocks: Callable[[int, int], KVBlocks], overlaps: bool) -> float:
    """CPU seconds of a run."""
    options = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "async_scheduling": overlaps}
    before_s = time.process_time()
    simulate(
        workload,
        make_policy=lambda: load_policy("chunked_prefill", options),
        kv=Memory(num_blocks + 1, SIZE),
        cost=Linear(**LINEAR),
        make_blocks=make_blocks,
    )
    return time.process_time() - before_s


def spent(works: Sequence[Callable[[], float]], rounds: int) -> list[float]:
    """Of each of these works the CPU seconds of its best round, in turn; or its instructions, which are the same."""
    if is_counted():
        return [instructions(work) / 1e9 for work in works]
    return [min(each) for each in zip(*[[work() for work in works] for _ in range(rounds)], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--contents", nargs="+", choices=CONTENTS, default=list(CONTENTS))
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--instructions", action="store_true")
    chosen = parser.parse_args()
    if chosen.instructions and not is_counted():
        again_counted("tests.bench.prefix_cache", sys.argv[1:])
        return
    print(f"# {'compiled' if is_compiled() else 'pure'}")
    print("| content | requests/s | blocks | without | with | ratio |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    kinds: tuple[Callable[[int, int], KVBlocks], ...] = (BlockLedger, partial(PrefixLedger, block_size=SIZE))
    for name in chosen.contents:
        for rate, num_blocks in TRAFFIC:
            workload = normal_lengths(chosen.requests, rate)
            make = CONTENTS[name]
            if make is not None:
                workload = replace(workload, content=make(workload))
            works = [partial(cpu_s, workload, num_blocks, kind, chosen.async_scheduling) for kind in kinds]
            off, on = (1e6 * total / chosen.requests for total in spent(works, chosen.rounds))
            print(f"| {name} | {rate:g} | {num_blocks:,} | {off:.1f} | {on:.1f} | {on / off:.2f} |", flush=True)


if __name__ == "__main__":
    main()
