"""vLLM's OffloadingConnector: prompts' blocks are stored on the host, and loaded where the device lacks them.

The rules are those of vllm/distributed/kv_transfer/kv_connector/v1/offloading/ (scheduler.py, worker.py) of 0.33.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from simulator.connector import Found
from simulator.engine.connector.blocks import ConnectedBlocks
from simulator.engine.connector.copier import LOAD, STORE, SYNC, Copier
from simulator.engine.connector.protocol import Arrivals
from simulator.engine.connector.request import ConnectedRequest
from simulator.memory.offload import OffloadConfig
from simulator.memory.offload.access import Access
from simulator.memory.offload.tier import HostTier
from simulator.memory.request_keys import RequestKeys
from simulator.request import Request
from simulator.request_state import FINISHED, LOADING

_NOTHING = Found(0, later=False)


@dataclass(slots=True)
class Offered:
    """What the connector keeps of a request: `chunks` of it have been offered, and `table` has its blocks by id.

    `noted` blocks of the table have been seen; `ended_tokens` of it are computed, where it has ended.
    """

    request: Request
    live: ConnectedRequest
    access: Access = field(default_factory=Access)
    keys: list[Hashable] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    chunks: int = 0
    noted: int = 0
    jobs: set[int] = field(default_factory=set)
    ended_tokens: int = 0
    is_closed: bool = False  # it has ended, and all of it has been offered


@dataclass(slots=True)
class Job:
    """A copy: the chunks, and of a store the blocks that it reads."""

    offered: Offered
    kind: str
    keys: Sequence[Hashable]
    blocks: list[int]


class Offloading:
    """A `Connector` to the host of one replica."""

    drops_late = fails_requests = False

    def __init__(self, config: OffloadConfig, blocks: ConnectedBlocks, *, overlaps: bool) -> None:
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
        self._size = blocks.block_size
        self._chunk_tokens = config.blocks_per_chunk * blocks.block_size
        self._keys = RequestKeys(blocks.block_size)
        self._requests: dict[int, Offered] = {}
        self._jobs: dict[int, Job] = {}
        self._num_jobs = 0
        self._loading: set[Hashable] = set()  # chunks that loads between steps read
        self._fences: dict[int, set[int]] = {}  # block of a request that has ended -> stores that read it
        self._ended: list[Offered] = []  # since the last plan
        # Of the plan that is being applied, and then of the step that is launched:
        self._sync_blocks = 0
        self._taken: set[int] = set()
        self._loads: list[int] = []
        self._stores: list[int] = []
        self._flushed: set[int] = set()
        self._unsubmitted: list[int] = []  # stores decided in the step before
        self._any_ended = False  # a request has, since the last plan

    # Looking up

    def look(self, request: Request, live: ConnectedRequest, computed_tokens: int) -> Found | None:
        """Consecutive chunks from the local hit on; none if less than a chunk is gained.

        None while one of them is being written or read by another load, or the request has copies under way.
        """
        offered = self._of(request, live)
        if offered.jobs:
            return None
        self._name(offered)
        size, keys = self._chunk_tokens, offered.keys
        most = min(live.num_tokens, len(keys) * size)
        if most - computed_tokens < size:
            return _NOTHING
        start = stop = computed_tokens // size
        waits = False
        while stop < len(keys) and (there := self.tier.is_there(keys[stop])) is not False:
            waits = waits or there is None
            stop += 1
        tokens = min(most, stop * size) - computed_tokens
        if stop == start or tokens < size:
            return _NOTHING
        if waits or (self._loading and not self._loading.isdisjoint(keys[start:stop])):
            return None
        blocks = tokens // self._size
        in_step = computed_tokens + tokens < live.num_tokens
        in_step = in_step and self._sync_blocks + blocks <= self._config.sync_load_blocks
        return Found(tokens, later=not in_step)

    def _of(self, request: Request, live: ConnectedRequest) -> Offered:
        offered = self._requests.get(request.row)
        if offered is None:
            offered = self._requests[request.row] = Offered(request, live)
        return offered

    def _name(self, offered: Offered) -> None:
        """Name the chunks of the tokens that are known by now."""
        num_tokens = offered.live.num_tokens
        keys, step = offered.keys, self._config.blocks_per_chunk
        chunks = num_tokens // self._chunk_tokens
        if len(keys) < chunks:
            of_blocks = self._keys.of(offered.request)
            for chunk in range(len(keys), chunks):
                key = of_blocks[(chunk + 1) * step - 1]
                keys.append(key)
                offered.access.places[key] = ((chunk + 1) * self._chunk_tokens, 0)

    # The plan

    def admitted(self, request: Request, live: ConnectedRequest, found: Found, local_tokens: int) -> None:
        offered = self._of(request, live)
        table = offered.table = self._blocks.tables[request.row]
        self._taken.update(table)
        offered.chunks = offered.noted = 0
        if not found.tokens:
            return
        size = self._chunk_tokens
        stop = -(-(local_tokens + found.tokens) // size)
        keys = offered.keys[local_tokens // size : stop]
        offered.chunks = stop
        self.tier.load(keys, offered.access)
        blocks = table[local_tokens // self._size : (local_tokens + found.tokens) // self._size]
        self._loads.append(self._begin(offered, LOAD if found.later else SYNC, keys, blocks))
        if found.later:
            if self._blocks.caches_prefixes:
                self._loading.update(keys)
        else:
            self._sync_blocks += len(blocks)

    def _begin(self, offered: Offered, kind: str, keys: Sequence[Hashable], blocks: list[int]) -> int:
        job = self._num_jobs
        self._num_jobs += 1
        self._jobs[job] = Job(offered, kind, keys, blocks)
        offered.jobs.add(job)
        return job

    def planned(self, scheduled: Sequence[tuple[ConnectedRequest, int]], preempted: Sequence[ConnectedRequest]) -> None:
        """Decide what is stored of the scheduled requests, then of those that have ended since the last plan.

        A store that reads a block which was taken now, or a victim's, has to end before the step begins.
        """
        self._evicted_now = 0
        for live, _ in scheduled:
            offered = self._requests[live.row]
            self._taken.update(offered.table[offered.noted :])
            offered.noted = len(offered.table)
        for live in preempted:
            self._flushed |= self._requests[live.row].jobs - set(self._loads)
        for block in self._fences.keys() & self._taken:
            self._flushed |= self._fences[block]
        for live, tokens in scheduled:
            offered = self._requests[live.row]
            self._name(offered)
            self._offer(offered, min(live.base_computed + tokens, live.num_tokens))
        for offered in self._ended:
            job = self._offer(offered, offered.ended_tokens)
            if job is not None:
                self._fence(job)
                if not self._taken.isdisjoint(self._jobs[job].blocks):
                    self._flushed.add(job)
        for offered in self._ended:
            offered.is_closed = True
            self.tier.ended(offered.access)
            self._forget(offered)
        self._ended.clear()
        self._taken.clear()
        self._sync_blocks = 0
        self._any_ended = False

    def _offer(self, offered: Offered, num_tokens: int) -> int | None:
        """Offer the full chunks of so many computed tokens that have not been; returns the job that stores them."""
        if self._config.offload_prompt_only:
            num_tokens = min(num_tokens, offered.request.input_tokens)
        step = self._config.blocks_per_chunk
        chunks = min(num_tokens // self._chunk_tokens, len(offered.table) // step, len(offered.keys))
        start = offered.chunks
        if chunks <= start:
            return None
        stored = self.tier.store(offered.keys[start:chunks], offered.access)
        if stored is None:
            self.refused += chunks - start
            return None
        offered.chunks = chunks
        self.evicted += stored.evicted
        self._evicted_now += stored.evicted
        if not stored.keys:
            return None
        new = set(stored.keys)
        places = [at for at in range(start, chunks) if offered.keys[at] in new]
        blocks = [block for at in places for block in offered.table[at * step : (at + 1) * step]]
        job = self._begin(offered, STORE, stored.keys, blocks)
        self._stores.append(job)
        return job

    def _fence(self, job: int) -> None:
        """The blocks that a store reads are free: whoever takes one has to wait for it."""
        for block in self._jobs[job].blocks:
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
        self.copied((row, self.replica, 0, job.kind == STORE, blocks * self._size, size, start_s, end_s))

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
        self._name(offered)
        for job in offered.jobs:
            if self._jobs[job].kind == STORE:
                self._fence(job)
        self._ended.append(offered)

    def told(self) -> dict[str, int]:
        return {"evicted": self._evicted_now}

    @property
    def has_work(self) -> bool:
        return self._any_ended or bool(self._jobs)


def _untold(entry: tuple[float, ...]) -> None:
    pass
