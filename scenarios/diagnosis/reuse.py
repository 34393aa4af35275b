"""How much of each prompt was seen before: what a prefix cache could have found."""

from __future__ import annotations

import numpy as np

from simulator.memory.block_keys import BlockKeys, Chains
from simulator.results.records import Ints
from simulator.workload import Workload


def seen_before(workload: Workload, replica: Ints, block_size: int) -> tuple[Ints, Ints]:
    """Prompt tokens in full blocks that an earlier request had: on the same replica, and anywhere.

    A cache without limits would find these, but for what is computed at the same time. At least one token of a prompt
    is always computed. Zeros where nothing is known of content.
    """
    n = len(workload)
    same, anywhere = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    if workload.content is None:
        return same, anywhere
    chains: Chains = {}
    everywhere: set[object] = set()
    of_replica: dict[int, set[object]] = {}
    for row, content in enumerate(workload.content):
        if content is None:
            continue
        request = workload.request(row)
        keys = BlockKeys(request, block_size, chains)
        own = of_replica.setdefault(int(replica[row]), set())
        counts = [0, 0]
        known = [True, True]
        for block in range((request.input_tokens + request.output_tokens) // block_size):
            key = keys[block]
            if isinstance(key, tuple) and key[0] == row:
                break  # from here on the request's own
            if (block + 1) * block_size < request.input_tokens:
                for place, cache in enumerate((own, everywhere)):
                    known[place] = known[place] and key in cache
                    counts[place] += known[place]
            own.add(key)
            everywhere.add(key)
        same[row], anywhere[row] = counts[0] * block_size, counts[1] * block_size
    return same, anywhere
