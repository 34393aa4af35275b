"""The most prefix hits that a cache could have had that knows the future: Belady's rule, for the times of one run.

The bound is proven for a run without preemptions, in blocks of one size. When a request finds a block, its replica has
kept the block from some time on, as it entered; so it kept it since the last end of a request that has it (before, the
request's own use kept it), up to the look-up. No more such stretches can lie over one moment than the memory has
blocks. So the hits are at most the most stretches, from the last end to the next look-up of a block, of which no more
than so many ever overlap. Among equal ones that is found by dropping, where there are too many, the one that ends last
(L. A. Belady, IBM Systems Journal 5:2 (1966), 78-101; as scheduling of intervals: U. Faigle and W. Nawijn, Discrete
Applied Mathematics 58 (1995), 13-17). What real caches have beside, memory in use by running requests, blocks without
those before them and the places of what is decoded alone, is left out: it only takes hits away.

With one memory as large as those of all replicas, and all requests in it, the bound holds for every router under which
requests would be scheduled and end when they did here.
"""

from bisect import insort
from collections.abc import Hashable, Iterable
from math import nan

from scenarios.runs.result import Result
from simulator.memory.block_keys import BlockKeys, Chains

Stretch = tuple[float, float, int]
"""From when to when so many blocks have to be kept, so that each is found."""


def most_hits(stretches: Iterable[Stretch], capacity: int) -> int:
    """The most blocks that can be found with a memory of `capacity` blocks."""
    found = held = 0
    kept: list[tuple[float, int]] = []  # ends and blocks, by end
    for start, stop, blocks in sorted(stretches):
        if start >= stop:
            found += blocks
            continue
        while kept and kept[0][0] <= start:
            found += kept[0][1]
            held -= kept.pop(0)[1]
        insort(kept, (stop, blocks))
        held += blocks
        while held > capacity:
            last, many = kept.pop()
            left = max(0, many - (held - capacity))
            held -= many - left
            if left:
                kept.append((last, left))
    return found + sum([blocks for _, blocks in kept])


def foreseen_rate(result: Result, *, pooled: bool) -> float:
    """The share of the prompt tokens that caches could find which know the future: each replica's own, or one pool.

    NaN after preemptions: a request that comes back is looked up again.
    """
    records, workload = result.records, result.workload
    requests = records.requests
    if requests.preemptions.any():
        return nan
    (size,) = {group.block_size for group in records.sizes}
    blocks = [group.num_blocks for group in records.sizes for _ in range(group.replicas)]
    chains = Chains()
    last: list[dict[Hashable, float]] = [{} for _ in blocks]
    stretches: list[list[Stretch]] = [[] for _ in blocks]
    assert workload is not None
    whole = {request.request_id: request for request in workload.requests()}
    for place in requests.scheduled_s.argsort(kind="stable").tolist():
        number = 0 if pooled else int(requests.replica[place])
        request, now_s = whole[records.request_id(place)], float(requests.scheduled_s[place])
        keys = BlockKeys(request, size, chains)
        asked = min(keys.num_shared, (request.input_tokens - 1) // size)
        filled = min(keys.num_shared, (request.input_tokens + request.output_tokens) // size)
        known, ends = keys.first(filled), last[number]
        alike: dict[float, int] = {}
        for key in known[:asked]:
            if key in ends:
                alike[min(now_s, ends[key])] = alike.get(min(now_s, ends[key]), 0) + 1
        stretches[number] += [(start, now_s, many) for start, many in alike.items()]
        end_s = float(requests.released_s[place])
        for key in known[:filled]:
            ends[key] = max(end_s, ends.get(key, end_s))
    memories = [sum(blocks)] if pooled else blocks
    hits = sum(most_hits(each, memory) for each, memory in zip(stretches, memories, strict=False))
    return hits * size / int(requests.input_tokens.sum())
