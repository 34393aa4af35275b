"""vLLM's OffloadingConnector: prompts' blocks are stored on the host, and loaded where the device lacks them.

The rules are those of vllm/distributed/kv_transfer/kv_connector/v1/offloading/ (scheduler.py, worker.py) of 0.33.
"""

from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.division import cdiv
from simulator.engine.itemized_step import ItemizedRequest
from simulator.engine.parts.connected_memory import LOAD, STORE, SYNC, Connected, Copier
from simulator.engine.parts.connector import Arrivals, ConnectedGroups
from simulator.hardware.kv_groups import LayerCache
from simulator.memory.block_keys import BlockKeys, RequestKeys
from simulator.memory.group_tables import NULL, window_tails
from simulator.memory.offload import Access, HostTier, OffloadConfig, Stored
from simulator.request import Request
from simulator.request_state import FINISHED, LOADING
from simulator.speculative import Found, Send

# What a connector offers of a request to the host: chunks of each KV group, and the blocks that hold them.
# The rules are those of vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py (0.33), whose line
# numbers are given.


class OffloadGroup(NamedTuple):
    """A KV group in chunks of `chunk_blocks` blocks. `window` is how many a hit needs; 0: all from the start."""

    number: int
    cache: LayerCache
    chunk_blocks: int
    window: int
    tables: dict[int, list[int]]

    @property
    def chunk(self) -> int:
        """Tokens of a chunk."""
        return self.cache.block_size * self.chunk_blocks

    def window_before(self, tokens: int) -> int:
        """Chunks that a hit of so many tokens needs: one more where it ends inside a chunk (:364)."""
        if self.cache.kind != "window":
            return self.window
        return max(self.window, cdiv(self.cache.window - 1 + -tokens % self.chunk, self.chunk))


class OffloadGroups:
    """The groups of a memory; `in_order`: as they are looked up, those that need the most first.

    A budget of one block loads `tokens_of_block` tokens of all groups. Windows are kept that end at multiples of `unit`
    tokens; 0: at any.
    """

    def __init__(self, blocks: Connected, chunk_blocks: int) -> None:
        self.has_several = isinstance(blocks, ConnectedGroups)
        self.retention: int | None = None
        if isinstance(blocks, ConnectedGroups):
            plan = blocks.plan
            self.hash_size, self.retention = plan.hash_block_size, blocks.retention
            self.all = [_group(table.number, table.cache, chunk_blocks, table.tables) for table in blocks.tables]
            token_bytes = sum([group.page_bytes // group.cache.block_size for group in plan.groups])
            self.tokens_of_block = plan.bytes_per_block[0] / token_bytes
        else:
            self.hash_size = blocks.block_size
            self.all = [_group(0, LayerCache("full", blocks.block_size), chunk_blocks, blocks.tables)]
            self.tokens_of_block = float(blocks.block_size)
        whole = [group for group in self.all if not group.window]
        self.windows = sorted([group for group in self.all if group.window], key=lambda group: -group.window)
        self.in_order = [*whole, *self.windows]
        chunks = {group.chunk for group in whole} or {max([group.chunk for group in self.all])}
        self.unit = chunks.pop() if len(chunks) == 1 else 0


def _group(number: int, cache: LayerCache, chunk_blocks: int, tables: dict[int, list[int]]) -> OffloadGroup:
    reach = cache.window if cache.kind == "window" else cache.chunk if cache.kind == "chunked" else 0
    return OffloadGroup(number, cache, chunk_blocks, cdiv(reach, cache.block_size * chunk_blocks), tables)


@dataclass(slots=True)
class Part:
    """A request in one group: keys of its chunks, of which `chunks` have been offered, and its blocks by id.

    A block that its window has left still holds its content, and is `NULL` here only when it has been taken anew.
    """

    keys: list[Hashable] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    chunks: int = 0


@dataclass(slots=True)
class Offered:
    """What the connector keeps of a request: its `parts` by group, and its copies under way.

    `ended_tokens` of it are computed, where it has ended; `junction`: see `simulator.memory.grouped.Hit`.
    """

    request: Request
    live: ItemizedRequest
    parts: list[Part]
    access: Access = field(default_factory=Access)
    jobs: set[int] = field(default_factory=set)
    junction: int = 0
    ended_tokens: int = 0
    is_closed: bool = False  # it has ended, and all of it has been offered

    def name(self, groups: OffloadGroups, of_blocks: BlockKeys) -> None:
        """Name the chunks of the tokens that are known by now."""
        num_tokens, places = self.live.num_tokens, self.access.places
        for group, part in zip(groups.all, self.parts, strict=True):
            size = group.chunk
            for chunk in range(len(part.keys), num_tokens // size):
                key = of_blocks[(chunk + 1) * size // groups.hash_size - 1]
                if groups.has_several:
                    key = group.number, key
                part.keys.append(key)
                places[key] = (chunk + 1) * size, group.number

    def storable(self, group: OffloadGroup, num_tokens: int) -> int:
        """Leading chunks that are full of so many tokens (:452)."""
        part = self.parts[group.number]
        return min(num_tokens // group.chunk, len(part.blocks) // group.chunk_blocks, len(part.keys))


class Offer(NamedTuple):
    """Chunks that are offered of a request, and for each group those that were looked at."""

    keys: list[Hashable]
    looked_at: list[range]


def offer_of(groups: OffloadGroups, offered: Offered, num_tokens: int, *, ended: bool) -> Offer:
    """The chunks of so many computed tokens that have not been offered and that a later request may find (:1787).

    Windows are kept where a hit may end; at the end of a request, that is also where it ends.
    """
    keys: list[Hashable] = []
    looked_at: list[range] = []
    prompt, retention = offered.request.input_tokens, groups.retention
    boundaries = [prompt - 1, offered.junction] if offered.junction else [prompt - 1]
    for group in groups.all:
        part, size = offered.parts[group.number], group.chunk_blocks
        start, stop, prompt_stop = part.chunks, offered.storable(group, num_tokens), prompt // group.chunk
        tail = 0  # blocks from one end of windows to the next, where they are kept at the request's end too
        if group.cache.kind == "window" and retention is None and groups.unit % group.cache.block_size == 0:
            tail = groups.unit // group.cache.block_size
        again = ended and tail > 0 and stop != prompt_stop
        if again:  # what was no tail while the request went on may be one now
            start = min(start, (stop * size - stop * size % tail) // size)
        looked_at.append(range(start, max(start, stop)))
        places = range(start * size, stop * size)
        end = 0 if not tail else stop if ended else prompt_stop if stop <= prompt_stop else 0
        kept = _kept(groups, group, places, boundaries, end)
        before = (_kept(groups, group, places, boundaries, prompt_stop) if again else None) or set()
        for chunk in range(start, stop):
            own = range(chunk * size, (chunk + 1) * size)
            if again and chunk < part.chunks and not before.isdisjoint(own):
                continue  # it has been offered
            tails = own if kept is None else kept.intersection(own)
            if tails and part.blocks[own[-1]] != NULL and all(part.blocks[place] != NULL for place in tails):
                keys.append(part.keys[chunk])
    return Offer(keys, looked_at)


def _kept(
    groups: OffloadGroups, group: OffloadGroup, places: range, boundaries: Sequence[int], end: int
) -> set[int] | None:
    """The blocks that may serve a hit, where the request's chunks may end at `end`; None for all."""
    if group.cache.kind != "window":
        return None
    end_place = end * group.chunk_blocks
    return set(window_tails(group.cache, groups.unit, groups.retention, places, boundaries, end_place))


def blocks_of(groups: OffloadGroups, offered: Offered, offer: Offer, stored: Sequence[Hashable]) -> list[list[int]]:
    """The blocks that a store of these keys reads, by group."""
    new = set(stored)
    found = []
    for group, part, places in zip(groups.all, offered.parts, offer.looked_at, strict=True):
        size = group.chunk_blocks
        chunks = [part.blocks[at * size : (at + 1) * size] for at in places if part.keys[at] in new]
        found.append([block for chunk in chunks for block in chunk if block != NULL])
    return found


# How far the host has what a request needs of all KV groups.
# As `_lookup_complete_chunks` of vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py (0.33).


def look_up(
    groups: OffloadGroups, tier: HostTier, parts: Sequence[Part], computed: int, num_tokens: int, loading: Set[Hashable]
) -> int | None:
    """Tokens behind those computed that can be loaded; 0 if they are less than a chunk of some group.

    Groups that keep all are looked up first; each may only shorten what the others have. None while a chunk that is
    needed is being written, or is one of those that other loads read.
    """
    most = num_tokens - 1 if groups.windows else num_tokens  # a window is read by the last token again
    found, waits = 0, False
    looked_up = groups.in_order
    while looked_up:
        has_window = False
        now, looked_up = looked_up, []
        for group in now:
            size, keys = group.chunk, parts[group.number].keys
            most = min(most, len(keys) * size)
            if most - computed < size:
                return 0
            start, stop = computed // size, min(cdiv(most, size), len(keys))
            if group.window:
                needed = group.window_before(min(most, stop * size))
                chunks = _there_in_window(tier, keys[start:stop], group.window, needed)
            else:
                chunks = _there_in_prefix(tier, keys[start:stop])
            if chunks == 0:
                return 0
            if chunks is None:
                waits = True
            else:
                most = min(most, (start + chunks) * size)
            if most - computed < size:
                return 0
            if most - computed < found:
                if waits:  # the chunk that was waited for may not be needed any more
                    waits, looked_up = False, groups.in_order
                elif has_window and not looked_up:
                    looked_up = groups.windows
            has_window = has_window or group.window > 0
            found = most - computed
    if waits:
        return None
    total = computed + found
    if loading:
        for group in groups.all:
            needed_keys = parts[group.number].keys[computed // group.chunk : cdiv(total, group.chunk)]
            if group.window:
                needed_keys = needed_keys[-group.window_before(total) :]
            if not loading.isdisjoint(needed_keys):
                return None
    return found


def _there_in_prefix(tier: HostTier, keys: Sequence[Hashable]) -> int | None:
    """Leading chunks that are there; None if one of them is being written."""
    count, waits = 0, False
    for key in keys:
        there = tier.is_there(key)
        if there is False:
            break
        waits = waits or there is None
        count += 1
    return None if waits else count


def _there_in_window(tier: HostTier, keys: Sequence[Hashable], window: int, needed: int) -> int | None:
    """The end of the last run of chunks that fills a window, or else of those from the start (:658).

    The first run may need more of them. None if one of the run is being written.
    """
    run, waits = 0, False
    for place in range(len(keys) - 1, -1, -1):
        there = tier.is_there(keys[place])
        if there is False:
            run, waits, needed = 0, False, window
        else:
            run += 1
            waits = waits or there is None
        if run == needed:
            return None if waits else place + needed
    return None if waits else run


# vLLM's OffloadingConnector: prompts' blocks are stored on the host, and loaded where the device lacks them.
# The rules are those of vllm/distributed/kv_transfer/kv_connector/v1/offloading/ (scheduler.py, worker.py) of 0.33.

_NOTHING = Found(0, later=False)


@dataclass(slots=True)
class Job:
    """A copy: the chunks, and the blocks that it writes or reads.

    Who takes a block of `fenced` has to wait for it from the beginning, of others once the request has ended.
    """

    offered: Offered
    kind: str
    keys: Sequence[Hashable]
    blocks: list[int]
    fenced: Sequence[int] = ()


class Offloading:
    """A `Connector` to the host of one replica."""

    drops_late = fails_requests = False

    def __init__(self, config: OffloadConfig, blocks: Connected, *, overlaps: bool) -> None:
        self.is_fenced = overlaps
        self.now_s = 0.0
        self.replica = 0
        self.copied: Callable[[tuple[float, ...]], None] = _untold
        self.tier = HostTier(config.num_chunks, config.eviction_policy, config.store_threshold)
        self.copier = Copier(config.block_bytes, config.bandwidth, config.latency_s)
        self.evicted = 0
        self.refused = 0
        self._evicted_now = 0
        self._config = config
        self._blocks = blocks
        self._groups = OffloadGroups(blocks, config.blocks_per_chunk)
        self._most_sync = int(config.sync_load_blocks * self._groups.tokens_of_block)
        self._keys = RequestKeys(self._groups.hash_size)
        self._requests: dict[int, Offered] = {}
        self._jobs: dict[int, Job] = {}
        self._num_jobs = 0
        self._loading: set[Hashable] = set()  # chunks that loads between steps read
        self._fences: dict[int, set[int]] = {}  # block that may be taken -> stores that read it
        self._held: dict[int, list[tuple[Part, int]]] = {}  # block of a window -> where it is, or was, in tables
        self._ended: list[Offered] = []  # since the last plan
        # Of the plan that is being applied, and then of the step that is launched:
        self._sync_tokens = 0
        self._taken: set[int] = set()
        self._loads: list[int] = []
        self._stores: list[int] = []
        self._flushed: set[int] = set()
        self._unsubmitted: list[int] = []  # stores decided in the step before
        self._any_ended = False  # a request has, since the last plan

    def record(self, replica: int, copied: Callable[[tuple[float, ...]], None]) -> None:
        """Tell `copied` of each copy of this replica."""
        self.replica, self.copied = replica, copied

    def attach(self, send: Send) -> bool:
        """What is loaded comes from the host."""
        return False

    def offer(self, row: int, *, fails: bool) -> None:
        """No other server has KV for this one."""

    # Looking up

    def look(self, request: Request, live: ItemizedRequest, computed_tokens: int) -> Found | None:
        """What the host has of all groups; none if less than a chunk is gained.

        None while a chunk of it is being written or read by another load, or the request has copies under way.
        """
        offered = self._of(request, live)
        if offered.jobs:
            return None
        offered.name(self._groups, self._keys.of(request))
        tokens = look_up(self._groups, self.tier, offered.parts, computed_tokens, live.num_tokens, self._loading)
        if not tokens:
            return None if tokens is None else _NOTHING
        in_step = computed_tokens + tokens < live.num_tokens
        return Found(tokens, later=not (in_step and self._sync_tokens + tokens <= self._most_sync))

    def _of(self, request: Request, live: ItemizedRequest) -> Offered:
        offered = self._requests.get(request.row)
        if offered is None:
            offered = self._requests[request.row] = Offered(request, live, [Part() for _ in self._groups.all])
        return offered

    # The plan

    def admitted(self, request: Request, live: ItemizedRequest, found: Found, local_tokens: int) -> None:
        offered, total = self._of(request, live), local_tokens + found.tokens
        if isinstance(self._blocks, ConnectedGroups):
            offered.junction = self._blocks.junctions[request.row]
        keys: list[Hashable] = []
        blocks: list[int] = []
        for group, part in zip(self._groups.all, offered.parts, strict=True):
            table, size = group.tables[request.row], group.cache.block_size
            self._taken.update(table)
            part.blocks = []
            part.chunks = 0
            if not found.tokens:
                continue
            stop = cdiv(total, size)
            new = [place for place in range(cdiv(local_tokens, size), stop) if table[place] != NULL]
            part.chunks = cdiv(total, group.chunk)
            if new:
                keys += part.keys[new[0] // group.chunk_blocks : part.chunks]
                blocks += table[new[0] : stop]
        self._taken.discard(NULL)
        if not found.tokens:
            return
        self.tier.load(keys, offered.access)
        self._loads.append(self._begin(offered, LOAD if found.later else SYNC, keys, blocks))
        if not found.later:
            self._sync_tokens += found.tokens
        elif self._blocks.caches_prefixes:
            self._loading.update(keys)

    def _begin(
        self, offered: Offered, kind: str, keys: Sequence[Hashable], blocks: list[int], fenced: Sequence[int] = ()
    ) -> int:
        job = self._num_jobs
        self._num_jobs += 1
        self._jobs[job] = Job(offered, kind, keys, blocks, fenced)
        offered.jobs.add(job)
        return job

    def planned(self, scheduled: Sequence[tuple[ItemizedRequest, int]], preempted: Sequence[ItemizedRequest]) -> None:
        """Decide what is stored of the scheduled requests, then of those that have ended since the last plan.

        A store that reads a block which was taken now, or a victim's, has to end before the step begins.
        """
        self._evicted_now = 0
        self._see_tables([self._requests[live.row] for live, _ in scheduled])
        for live in preempted:
            self._flushed |= self._requests[live.row].jobs - set(self._loads)
        for block in self._fences.keys() & self._taken:
            self._flushed |= self._fences[block]
        for live, tokens in scheduled:
            offered = self._requests[live.row]
            offered.name(self._groups, self._keys.of(offered.request))
            self._offer(offered, min(live.base_computed + tokens, live.num_tokens))
        for offered in self._ended:
            job = self._offer(offered, offered.ended_tokens, ended=True)
            if job is not None:
                made = self._jobs[job]
                self._fence(job, made.blocks)
                if not self._taken.isdisjoint(set(made.blocks).difference(made.fenced)):
                    self._flushed.add(job)
        for offered in self._ended:
            offered.is_closed = True
            self.tier.ended(offered.access)
            self._forget(offered)
        self._ended.clear()
        self._taken.clear()
        self._sync_tokens = 0
        self._any_ended = False

    def _see_tables(self, scheduled: Sequence[Offered]) -> None:
        """Note the blocks that these requests have taken; windows that had held them do not any more."""
        grown = []
        for offered in scheduled:
            for group, part in zip(self._groups.all, offered.parts, strict=True):
                if new := group.tables[offered.request.row][len(part.blocks) :]:
                    grown.append((group, part, new))
                    self._taken.update(new)
        self._taken.discard(NULL)
        if self._held:
            for block in self._held.keys() & self._taken:
                self._held[block] = [(part, at) for part, at in self._held[block] if not self._lost(block, part, at)]
        for group, part, new in grown:
            if group.window:
                for at, block in enumerate(new, len(part.blocks)):
                    if block != NULL:
                        self._held.setdefault(block, []).append((part, at))
            part.blocks += new

    def _lost(self, block: int, part: Part, at: int) -> bool:
        """Forget that a request's window held this block here; returns whether that is so now.

        What has been offered is not looked at again.
        """
        if at >= len(part.blocks) or part.blocks[at] != block:
            return True
        if at < part.chunks * self._config.blocks_per_chunk:
            return False
        part.blocks[at] = NULL
        return True

    def _offer(self, offered: Offered, num_tokens: int, *, ended: bool = False) -> int | None:
        """Offer the full chunks of so many computed tokens that have not been; returns the job that stores them."""
        groups = self._groups
        if self._config.offload_prompt_only:
            num_tokens = min(num_tokens, offered.request.input_tokens)
        offer = offer_of(groups, offered, num_tokens, ended=ended)
        stored = self.tier.store(offer.keys, offered.access) if offer.keys else Stored(())
        if stored is None:
            self.refused += len(offer.keys)
            return None
        for group, part in zip(groups.all, offered.parts, strict=True):
            part.chunks = max(part.chunks, offered.storable(group, num_tokens))
        self.evicted += stored.evicted
        self._evicted_now += stored.evicted
        if not stored.keys:
            return None
        read = blocks_of(groups, offered, offer, stored.keys)
        fenced = [block for group, own in zip(groups.all, read, strict=True) if group.window for block in own]
        job = self._begin(offered, STORE, stored.keys, [block for own in read for block in own], fenced)
        self._fence(job, fenced)
        self._stores.append(job)
        return job

    def _fence(self, job: int, blocks: Sequence[int]) -> None:
        """A store reads these blocks, which may come free before it has ended: whoever takes one waits for it."""
        for block in blocks:
            self._fences.setdefault(block, set()).add(job)

    def _forget(self, offered: Offered) -> None:
        row = offered.request.row
        if offered.is_closed and not offered.jobs and self._requests.get(row) is offered:
            del self._requests[row]
            self._keys.end(row)

    # The launch of a step

    def before(self, now_s: float, busy_until_s: float) -> float:
        """Submit the stores of the step before, and those that must end at once; wait for these, and for sync loads."""
        at_once = [job for job in self._stores if job in self._flushed]
        self._stores = [job for job in self._stores if job not in self._flushed]
        for job in (*self._unsubmitted, *at_once):
            self._submit(job, now_s, busy_until_s)
        self._unsubmitted, self._stores = self._stores, []
        ready_s = self.copier.wait(self._flushed, now_s)
        self._flushed.clear()
        sync = [job for job in self._loads if self._jobs[job].kind == SYNC]
        if sync:
            self._submit_loads(ready_s, busy_until_s)
        return self.copier.wait(sync, ready_s)

    def after(self, ready_s: float, busy_until_s: float) -> Arrivals:
        """Submit the loads, which begin when the step has ended, and see which copies have ended."""
        self._submit_loads(ready_s, busy_until_s)
        jobs = self.copier.ended_by(ready_s)
        loaded = [self._jobs[job].offered.request.row for job in jobs if self._jobs[job].kind == LOAD]
        return Arrivals(loaded=loaded, jobs=jobs)

    def _submit_loads(self, ready_s: float, busy_until_s: float) -> None:
        for job in self._loads:
            self._submit(job, ready_s, busy_until_s)
        self._loads.clear()

    def _submit(self, number: int, ready_s: float, busy_until_s: float) -> None:
        job = self._jobs[number]
        blocks = len(job.blocks)
        start_s, end_s = self.copier.submit(number, job.kind, blocks, ready_s, busy_until_s)
        size, row = blocks * self._config.block_bytes, job.offered.request.row
        tokens = blocks * self._groups.hash_size
        self.copied((row, self.replica, 0, job.kind == STORE, tokens, size, start_s, end_s))

    # The results

    def arrived(self, arrivals: Arrivals) -> None:
        """Chunks that were written can be read, and those that were read can leave."""
        for number in arrivals.jobs:
            job = self._jobs.pop(number)
            if job.kind == STORE:
                self.tier.stored(job.keys)
                self._unfence(number, job)
            else:
                self.tier.loaded(job.keys)
                self._loading.difference_update(job.keys)
            job.offered.jobs.remove(number)
            self._forget(job.offered)

    def _unfence(self, number: int, job: Job) -> None:
        for block in job.blocks:
            if block in self._fences:
                self._fences[block].discard(number)
                if not self._fences[block]:
                    del self._fences[block]

    def keeps(self, live: ItemizedRequest, now_s: float) -> bool:
        """Blocks are freed at once: whoever takes them waits for the stores that read them."""
        return False

    def ended(self, row: int) -> None:
        """Offer the rest of the request with the next plan."""
        self._any_ended = True
        offered = self._requests.get(row)
        if offered is None:
            return
        live = offered.live
        if live.status is FINISHED:
            offered.ended_tokens = max(live.input_tokens, live.num_tokens - 1)
        elif live.status is not LOADING:
            offered.ended_tokens = live.base_computed
        offered.name(self._groups, self._keys.of(offered.request))
        for job in offered.jobs:
            if self._jobs[job].kind == STORE:
                self._fence(job, self._jobs[job].blocks)
        self._ended.append(offered)

    def told(self) -> dict[str, int]:
        return {"evicted": self._evicted_now}

    @property
    def has_work(self) -> bool:
        return self._any_ended or bool(self._jobs)


def _untold(entry: tuple[float, ...]) -> None:
    pass
