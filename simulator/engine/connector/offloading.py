"""vLLM's OffloadingConnector: prompts' blocks are stored on the host, and loaded where the device lacks them.

The rules are those of vllm/distributed/kv_transfer/kv_connector/v1/offloading/ (scheduler.py, worker.py) of 0.33.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from simulator.connector import Found
from simulator.division import cdiv
from simulator.engine.connector.blocks import Connected
from simulator.engine.connector.copier import LOAD, STORE, SYNC, Copier
from simulator.engine.connector.groups import ConnectedGroups
from simulator.engine.connector.lookup import look_up
from simulator.engine.connector.offered import Offered, OffloadGroups, Part, blocks_of, offer_of
from simulator.engine.connector.protocol import Arrivals
from simulator.engine.connector.request import ConnectedRequest
from simulator.memory.group_pool import NULL
from simulator.memory.offload import OffloadConfig
from simulator.memory.offload.tier import HostTier, Stored
from simulator.memory.request_keys import RequestKeys
from simulator.request import Request
from simulator.request_state import FINISHED, LOADING

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

    # Looking up

    def look(self, request: Request, live: ConnectedRequest, computed_tokens: int) -> Found | None:
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

    def _of(self, request: Request, live: ConnectedRequest) -> Offered:
        offered = self._requests.get(request.row)
        if offered is None:
            offered = self._requests[request.row] = Offered(request, live, [Part() for _ in self._groups.all])
        return offered

    # The plan

    def admitted(self, request: Request, live: ConnectedRequest, found: Found, local_tokens: int) -> None:
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

    def planned(self, scheduled: Sequence[tuple[ConnectedRequest, int]], preempted: Sequence[ConnectedRequest]) -> None:
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

    def keeps(self, live: ConnectedRequest, now_s: float) -> bool:
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
