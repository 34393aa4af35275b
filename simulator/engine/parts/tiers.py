"""Tiers below the host: each gets what the host has stored, and what the host lacks comes back from them.

The rules are those of vllm/v1/kv_offload/tiering (manager.py, async_lookup.py) of 0.33. Unlike vLLM's tiers, these may
have a size.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from simulator.engine.itemized_step import ItemizedRequest
from simulator.engine.parts.connected_memory import STORE, Connected
from simulator.engine.parts.connector import Arrivals, ConnectedGroups
from simulator.engine.parts.offload import Offered, Offloading
from simulator.errors import InputError
from simulator.memory.offload import Access, FurtherTier, OffloadConfig, TieredHost
from simulator.request import Request
from simulator.speculative import Found

# Tiers below the host: each gets what the host has stored, and what the host lacks comes back from them.
# The rules are those of vllm/v1/kv_offload/tiering (manager.py, async_lookup.py) of 0.33. Unlike vLLM's tiers,
# these may have a size.


@dataclass(slots=True)
class TierJob:
    """A copy of chunks between the host and a further tier, which ends at `end_s`."""

    tier: FurtherTier
    is_store: bool
    keys: Sequence[Hashable]
    end_s: float


class Tiering(Offloading):
    """An `Offloading` with further tiers. What comes from them is written to the host, and loaded from there.

    vLLM takes the host's room for a chunk when it is asked for, this at the end of the same plan; and what a look-up
    found on the host is not evicted for the rest of it.
    """

    def __init__(self, config: OffloadConfig, blocks: Connected, *, overlaps: bool) -> None:
        if isinstance(blocks, ConnectedGroups):
            raise InputError("tiers below the host do not go with layers that keep different things yet")
        super().__init__(config, blocks, overlaps=overlaps)
        self._chunk_tokens = config.blocks_per_chunk * blocks.block_size
        self._chunk_bytes = config.block_bytes * config.blocks_per_chunk
        self.further = [FurtherTier(each, self._chunk_bytes) for each in config.tiers]
        self.tier = self._host = TieredHost(config.num_chunks, config.eviction_policy, self.further)
        self._queues: list[tuple[deque[TierJob], deque[TierJob]]] = [(deque(), deque()) for _ in self.further]
        self._stored: list[tuple[Offered, Sequence[Hashable]]] = []  # on the host since the last plan
        self._uses: dict[int, list[Access]] = {}  # by row: what a request has done with each further tier
        self._is_polled = False

    def look(self, request: Request, live: ItemizedRequest, computed_tokens: int) -> Found | None:
        """See `Offloading.look`; None also while a further tier is asked, or reads a chunk."""
        self._poll()
        self._host.begin_look(request.row)
        found = super().look(request, live, computed_tokens)
        self._host.end_look()
        return found

    def planned(self, scheduled: Sequence[tuple[ItemizedRequest, int]], preempted: Sequence[ItemizedRequest]) -> None:
        """See `Offloading.planned`; begin to read what look-ups found in further tiers."""
        self._poll()
        for row, (keys, places) in self._host.take_wanted().items():
            self._promote(self._requests[row], keys, places)
        super().planned(scheduled, preempted)
        self._host.answer()
        self._is_polled = False

    def _promote(self, offered: Offered, keys: Sequence[Hashable], places: dict[Hashable, int]) -> None:
        """Read chunks from the tiers `places` into the host, without evicting others of `keys`."""
        kept = [key for key in keys if key in places or key in self._host.chunks]
        stored = self._host.store(kept, offered.access)
        if stored is None:
            self._host.give_up(places)  # it is computed, rather than asked for again and again
            return
        self.evicted += stored.evicted
        for place, tier in enumerate(self.further):
            found = [key for key in stored.keys if places[key] == place]
            if found:
                tier.load(found, self._use(offered, place))
                self._copy(offered, place, found, is_store=False)

    def arrived(self, arrivals: Arrivals) -> None:
        """See `Offloading.arrived`; what the host has now is kept there until the further tiers have it too."""
        jobs = [self._jobs[number] for number in arrivals.jobs]
        super().arrived(arrivals)
        for job in jobs:
            if job.kind == STORE:
                self._host.pin(job.keys)
                self._stored.append((job.offered, job.keys))

    def _poll(self) -> None:
        """Once a plan: see which copies have ended, and write on what the host got."""
        if self._is_polled:
            return
        self._is_polled = True
        for queues in self._queues:
            for queue in queues:
                while queue and queue[0].end_s <= self.now_s:
                    self._end(queue.popleft())
        for offered, keys in self._stored:
            for place in range(len(self.further)):
                self._write(offered, keys, place)
            self._host.loaded(keys)
        self._stored.clear()

    def _write(self, offered: Offered, keys: Sequence[Hashable], place: int) -> None:
        """Write these chunks of the host to a tier, if it has room for those that it lacks."""
        tier = self.further[place]
        use = self._use(offered, place)
        stored = tier.store(keys, use)
        if stored is not None and stored.keys:
            self._host.pin(stored.keys)
            self._copy(offered, place, stored.keys, is_store=True)
        if offered.request.row not in self._requests:
            self._end_uses(offered.request.row)

    def _copy(self, offered: Offered, place: int, keys: Sequence[Hashable], *, is_store: bool) -> None:
        tier = self.further[place]
        start_s, end_s = tier.copy(len(keys), self.now_s, is_store=is_store)
        self._queues[place][is_store].append(TierJob(tier, is_store, keys, end_s))
        tokens = len(keys) * self._chunk_tokens
        size = len(keys) * self._chunk_bytes
        self.copied((offered.request.row, self.replica, place + 1, is_store, tokens, size, start_s, end_s))

    def _end(self, job: TierJob) -> None:
        if job.is_store:
            self._host.loaded(job.keys)
            job.tier.stored(job.keys)
        else:
            job.tier.loaded(job.keys)
            self._host.stored(job.keys)

    def _use(self, offered: Offered, place: int) -> Access:
        row = offered.request.row
        if row not in self._uses:
            self._uses[row] = [Access(offered.access.places) for _ in self.further]
        return self._uses[row][place]

    def _forget(self, offered: Offered) -> None:
        super()._forget(offered)
        row = offered.request.row
        if row not in self._requests:
            self._host.forget(row)
            self._end_uses(row)

    def _end_uses(self, row: int) -> None:
        for tier, use in zip(self.further, self._uses.pop(row, ()), strict=False):
            tier.ended(use)

    @property
    def has_work(self) -> bool:
        """See `Connector.has_work`."""
        return super().has_work or bool(self._stored) or any(one or other for one, other in self._queues)
