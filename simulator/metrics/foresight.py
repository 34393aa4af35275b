"""The most prefix hits that caches could have had that know the future: Belady's rule, for the times of one run.

The bound is proven for one memory of blocks. When a request finds a block, its replica has kept the block from some
time on, as it entered; so it kept it since the last stay of a request that has it ended (before, the request's own use
kept it), up to the look-up. No more such stretches can lie over one moment than the memory has blocks. So the hits are
at most the most stretches, from the last end to the next look-up of a block, of which no more than so many ever
overlap. Among equal ones that is found by dropping, where there are too many, the one that ends last (L. A. Belady,
IBM Systems Journal 5:2 (1966), 78-101; as scheduling of intervals: U. Faigle and W. Nawijn, Discrete Applied
Mathematics 58 (1995), 13-17). What real caches have beside is left out: memory in use by running requests, blocks
without those before them, and the places of what is decoded alone. It only takes hits away.

With one memory as large as those of all replicas, and all requests in it, the bound holds for every router under which
requests would be scheduled and end when they did here; with one that forgets nothing for every order of evictions too.
"""

from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import NamedTuple

import numpy as np

from simulator.division import cdiv
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.metrics.metric import FRACTION, Metric
from simulator.metrics.window import Bools
from simulator.request import Request
from simulator.results.records import Records

Stretch = tuple[float, float, int]
"""From when to when so many blocks have to be kept, so that each is found."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """Shares of the prompt tokens that were looked up: found at most, by three kinds of memory.

    `own`: each replica's, with the router's choices. `pooled`: one as large as all together. `unlimited`: one that
    forgets nothing. The last two are None where replicas have blocks of unlike size.
    """

    own: float
    pooled: float | None
    unlimited: float | None


class _Stay(NamedTuple):
    """A request on a replica, from its admission to its end or its preemption."""

    start_s: float
    asked: int  # blocks that its look-up may find; -1: its KV comes back from the host, and is not looked up
    row: int
    end_s: float
    replica: int
    again: bool  # it was preempted before, or will be: blocks that no other request has may be found too


def foresight(records: Records, requests: Mapping[str, Request], measured: Bools) -> Foresight | None:
    """The bounds on the hits of the `measured` requests of a run; None where nothing was looked up.

    `requests` has the run's requests by name; an attempt of a client has that of its first one. Each replica has one
    memory of blocks of one size, and what is found anywhere else does not count as found.
    """
    sizes = [group.block_size for group in records.sizes for _ in range(group.replicas)]
    blocks = [group.num_blocks for group in records.sizes for _ in range(group.replicas)]
    rows = records.requests.row if records.calls is None else records.calls.first_row
    whole = [requests[records.request_id(row)]._replace(row=place) for place, row in enumerate(rows.tolist())]
    stays = sorted(_stays(records, sizes))
    asked = sum([whole[stay.row].input_tokens for stay in stays if stay.asked >= 0 and measured[stay.row]])
    if not asked:
        return None

    def share(some: Iterable[_Stay], size: int, capacity: float) -> float:
        return size * most_hits(_stretches(some, whole, measured, size), capacity) / asked

    each = enumerate(zip(sizes, blocks, strict=True))
    own = sum([share([s for s in stays if s.replica == number], size, room) for number, (size, room) in each])
    if len(set(sizes)) > 1:
        return Foresight(own, None, None)
    return Foresight(own, share(stays, sizes[0], sum(blocks)), share(stays, sizes[0], inf))


def most_hits(stretches: Iterable[Stretch], capacity: float) -> int:
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
            left = max(0, many - int(held - capacity))
            held -= many - left
            if left:
                kept.append((last, left))
    return found + sum([blocks for _, blocks in kept])


def _stays(records: Records, sizes: Sequence[int]) -> Iterator[_Stay]:
    """All stays; a preempted request has several."""
    requests, requeues = records.requests, records.requeues
    again: dict[int, list[tuple[float, float, int]]] = {}
    columns = (requeues.row, requeues.from_s, requeues.to_s, requeues.swapped)
    for row, from_s, to_s, swapped in zip(*(column.tolist() for column in columns), strict=True):
        again.setdefault(row, []).append((from_s, to_s, swapped))
    for row in np.flatnonzero(~np.isnan(requests.scheduled_s)).tolist():
        number, waits = requests.replica.item(row), sorted(again.get(row, ()))
        prompt, size = requests.input_tokens.item(row), sizes[number]
        ends = [*(from_s for from_s, _, _ in waits), requests.released_s.item(row)]
        begins = [(requests.scheduled_s.item(row), (prompt - 1) // size)]
        begins += [(to_s, -1 if swapped else cdiv(prompt, size)) for _, to_s, swapped in waits if not isnan(to_s)]
        for (start_s, asked), end_s in zip(begins, ends, strict=False):
            yield _Stay(start_s, asked, row, inf if isnan(end_s) else end_s, number, bool(waits))


def _stretches(stays: Iterable[_Stay], requests: Sequence[Request], measured: Bools, size: int) -> Iterator[Stretch]:
    """From the end of the last stay that has a block to the look-up of the next, of measured requests.

    Of stays that begin together those come first that ask for fewer blocks: in no other order is more found.
    """
    chains = Chains()
    ends: dict[Hashable, float] = {}
    for stay in stays:
        request = requests[stay.row]
        keys = BlockKeys(request, size, chains)
        filled = (request.input_tokens + request.output_tokens) // size
        shared = min(keys.num_shared, filled)
        known = keys.first(shared)[:shared]
        if stay.again:
            known = known + [keys[block] for block in range(shared, filled)]
        if measured[stay.row] and stay.asked > 0:
            alike: dict[float, int] = {}
            for key in known[: stay.asked]:
                if key in ends:
                    start_s = min(stay.start_s, ends[key])
                    alike[start_s] = alike.get(start_s, 0) + 1
            yield from ((start_s, stay.start_s, many) for start_s, many in alike.items())
        for key in known:
            ends[key] = max(stay.end_s, ends.get(key, stay.end_s))


FORESIGHT_METRICS = (
    Metric(
        "belady_hit_rate", "hits at most", FRACTION,
        "the most that prefix_cache_hit_rate could be with the router's choices, for caches that know the future",
        None, better=1, remark="Belady's rule; simulator/metrics/foresight.py has the proof", is_rare=True,
    ),
    Metric(
        "belady_pooled_hit_rate", "hits at most, one cache", FRACTION,
        "the same for one cache as large as those of all replicas: whatever the router chooses", None,
        better=1, is_rare=True,
    ),
    Metric(
        "unlimited_hit_rate", "hits, nothing forgotten", FRACTION,
        "the same for one cache that forgets nothing", None, better=1, is_rare=True,
    ),
)  # fmt: skip
