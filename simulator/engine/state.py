"""The state of a replica, and the changes that a plan may make to it.

Every change is checked first: a plan that asks for what cannot be is the policy's defect, and named as such.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from simulator.engine.clock import Clock
from simulator.engine.decode_batch import DecodeBatch
from simulator.errors import PolicyError
from simulator.memory.blocks import KVBlocks
from simulator.memory.cache import Cache
from simulator.memory.prefix_cache import PrefixCache
from simulator.plan import Chunk, Policy, Preemption, Traits, cdiv
from simulator.queues import make_queue
from simulator.queues.lpm import Lpm
from simulator.request import RequestView
from simulator.request_state import DECODING, LEAVING, PREFILLING, SWAPPED, WAITING, RequestState, RequestStatus
from simulator.results.recorder import Table

# A prompt chunk in execution: the request, the tokens to compute, and how many of these are padding.
ScheduledChunk = tuple[RequestState, int, int]


class ReplicaState:
    """Queue, batch and memory of one replica. `running` and `prefilling` are in order of admission."""

    def __init__(self, clock: Clock, policy: Policy, blocks: KVBlocks, block_size: int, requeues: Table) -> None:
        self.policy = policy
        self.traits: Traits = getattr(policy, "traits", Traits())
        self.blocks = blocks
        self.cache = blocks if isinstance(blocks, Cache) else None
        if isinstance(blocks, PrefixCache):
            blocks.unknown_first = self.traits.unknown_blocks_first
        self.batch = DecodeBatch(block_size)
        self.waiting = make_queue(self.traits.order)
        if isinstance(self.waiting, Lpm):
            self.waiting.cache = self.cache
        self.batch.meter = self.waiting.meter
        self.running: dict[RequestState, None] = {}
        self.prefilling: dict[RequestState, None] = {}
        self.paused: tuple[RequestState, ...] = ()
        self.held: list[RequestState] = []
        self.num_swapped = 0
        self.num_leaving = 0  # of those who run
        self.rejoined: Collection[RequestState] = ()  # those who were paused, and are not in the step planned last
        self._admissions = 0
        self._max_num_seqs = policy.max_num_seqs
        self._clock = clock
        self.requeues = requeues

    def broken(self, what: str) -> PolicyError:
        """The error for a plan that cannot be carried out."""
        return PolicyError(f"{type(self.policy).__name__} at {self._clock.now} s: the plan {what}")

    def preempt(self, preemption: Preemption, now_s: float) -> int:
        """Take a request out of the batch and put it back into the queue; returns the blocks swapped out."""
        live = self._live(preemption.request, DECODING, PREFILLING, LEAVING)
        blocks = live.num_blocks
        decoding = live.state is DECODING
        if live.state is LEAVING:
            self.num_leaving -= 1
        elif not decoding:
            del self.prefilling[live]
        elif live.paused:
            self.paused = tuple([other for other in self.paused if other is not live])
            live.paused = False
        else:
            self.batch.leave(live)
        del self.running[live]
        setbacks = live.set_back()
        setbacks.preemptions += 1
        setbacks.left_s = now_s
        if preemption.swap:
            if self.traits.async_scheduling:
                raise self.broken("swaps, which asynchronous scheduling does not allow")
            if not decoding or live.reserved_tokens:
                raise self.broken(f"swaps request {live.request_id}, whose prompt is not computed or KV is reserved")
            if blocks > self.blocks.num_free_host:
                free = self.blocks.num_free_host
                raise self.broken(f"swaps request {live.request_id}: {blocks} blocks, the host has {free} free")
            self.blocks.swap_out(live.row, blocks)
            setbacks.swapped_out_blocks += blocks
            self.num_swapped += 1
            live.state = SWAPPED
        else:
            (self.blocks.free if self.cache is None else self.cache.lose)(live.row, blocks)
            live.state = WAITING
            setbacks.recomputed_tokens += live.forget()
        (self.waiting.push if self.traits.victims_last else self.waiting.put_back)(live)
        return blocks if preemption.swap else 0

    def forget_preemption(self, live: RequestState, now_s: float) -> None:
        """A victim needs nothing any more: its last token was on its way."""
        self.waiting.remove(live)
        live.set_back().recomputed_tokens -= live.lost_tokens
        live.lost_tokens = 0
        self._no_longer_waits(live, now_s, swapped=False)

    def resume(self, view: RequestView, now_s: float) -> int:
        """Bring a swapped request back into the batch; returns the blocks swapped in."""
        live = self._live(view, SWAPPED)
        blocks = cdiv(live.num_computed_tokens, self.batch.block_size)
        if blocks > self.blocks.num_free:
            raise self.broken(f"brings back {live.request_id}: {blocks} blocks, {self.blocks.num_free} are free")
        self.waiting.remove(live)
        self.blocks.swap_in(live.row, blocks)
        self.num_swapped -= 1
        live.set_back().swapped_in_blocks += blocks
        self._no_longer_waits(live, now_s, swapped=True)
        self._admit(live)
        self.batch.join(live)
        return blocks

    def set_paused(self, paused: tuple[RequestView, ...]) -> bool:
        """Make exactly these decoding requests sit the step out; returns whether that is a change."""
        self.rejoined = ()
        now = tuple([self._live(view, DECODING) for view in paused])
        if now == self.paused:
            return False
        stay = set(now)
        if len(stay) < len(now):
            raise self.broken("pauses a request twice")
        self.rejoined = [live for live in self.paused if live not in stay]
        for live in self.rejoined:
            self.batch.join(live)
        for live in now:
            if not live.paused:
                self.batch.leave(live)
                live.paused = True
        self.paused = now
        self._check_slots()
        return True

    def compute(self, chunk: Chunk, now_s: float) -> ScheduledChunk:
        """Admit the chunk's request if it waits, and take the blocks that the chunk needs."""
        view, tokens, reserve, padding = chunk
        live = self._live(view, WAITING, PREFILLING)
        owned = 0
        if live.state is WAITING:
            self._enter(live, now_s)
            if self.cache is not None:
                owned = self._take_hits(live, self.cache)
            if reserve or padding or self.traits.keeps_finished:
                self._grant(live, reserve, padding)
        else:
            owned = live.num_blocks
        left = live.num_tokens_to_compute
        if not 0 <= tokens <= left:
            raise self.broken(f"computes {tokens} tokens of request {live.request_id}, which has {left} left")
        computed = live.base_computed
        room = computed + tokens
        if room < live.reserved_tokens:
            room = live.reserved_tokens
        needed = cdiv(room, self.batch.block_size) - owned
        if needed > 0:
            if needed > self.blocks.num_free:
                free = self.blocks.num_free
                raise self.broken(f"takes {needed} blocks for request {live.request_id}; {free} are free")
            self.blocks.allocate(live.row, needed)
        if self.cache is not None:
            self.cache.enter(live.request, min(computed + tokens, live.num_tokens) // self.batch.block_size)
        padding = live.padding_tokens - computed
        return live, tokens, min(padding, tokens) if padding > 0 else 0

    def _enter(self, live: RequestState, now_s: float) -> None:
        self.waiting.remove(live)
        self._admit(live)
        live.state = PREFILLING
        self.prefilling[live] = None
        if live.scheduled_s != live.scheduled_s:
            live.scheduled_s = now_s
        else:
            self._no_longer_waits(live, now_s, swapped=False)

    def _take_hits(self, live: RequestState, cache: Cache) -> int:
        """Begin with what is cached of the request; returns the blocks that it has for it."""
        hits, _ = cache.hits(live.request, live.num_tokens)
        cache.take_hits(live.request, hits)
        if hits:
            live.base_computed = hits * self.batch.block_size
            setbacks = live.set_back()
            # Of its own output it may find blocks too, after a preemption: the rate of hits is one of prompts.
            setbacks.cached_tokens += min(live.base_computed, live.input_tokens)
            # Of what a preemption threw away, this much need not be computed again.
            setbacks.recomputed_tokens -= min(live.base_computed, live.lost_tokens)
        live.lost_tokens = 0
        return hits

    def _grant(self, live: RequestState, reserve: int, padding: int) -> None:
        most = live.input_tokens + padding + live.max_tokens
        if reserve < most:
            raise self.broken(f"reserves {reserve} tokens for {live.request_id}, which may come to need {most}")
        live.reserved_tokens = reserve
        live.padding_tokens = padding

    def _admit(self, live: RequestState) -> None:
        self._admissions += 1
        live.admission = self._admissions
        self.running[live] = None
        self._check_slots()

    def _check_slots(self) -> None:
        """Who is paused needs none."""
        if len(self.running) - len(self.paused) + len(self.held) > self._max_num_seqs:
            raise self.broken(f"runs more than max_num_seqs = {self._max_num_seqs} requests")

    def _no_longer_waits(self, live: RequestState, now_s: float, *, swapped: bool) -> None:
        setbacks = live.set_back()
        setbacks.requeued_s += now_s - setbacks.left_s
        self.requeues.add((live.row, setbacks.left_s, now_s, swapped))

    def _live(self, view: RequestView, *allowed: RequestStatus) -> RequestState:
        """The request behind a view, which must be this replica's and in one of the states allowed."""
        if not isinstance(view, RequestState) or view.batch is not self.batch:
            raise self.broken(f"names {view!r}, which is no request of this replica")
        if view.state not in allowed:
            raise self.broken(f"names request {view.request_id}, which is {view.state.value} and cannot be used so")
        return view

    def grow(self, steps: int, taken: bool) -> list[int]:
        """Take the blocks that `steps` decode steps need; returns the used blocks during each of them.

        `taken` says that those of the first step are taken already.
        """
        blocks = self.blocks
        used = blocks.num_blocks - blocks.num_free
        if taken:
            used -= self.batch.blocks_needed()
        use = self.batch.block_use(used, steps)
        first = 1 if taken else 0
        grown = use[-1] - (use[0] if taken else used)
        if grown:
            blocks.grow(grown, self._growers(first, steps))
        if self.cache is not None and self.cache.enters_decoded:
            for live, full_blocks in self._fillers(first, steps):
                self.cache.enter(live.request, full_blocks)
        return use

    def settle(self, prefill: Iterable[ScheduledChunk]) -> None:
        """The step has ended that computed these chunks."""
        if self.cache is not None:
            self.cache.settle([live.row for live, _, _ in prefill])

    def _growers(self, first: int, steps: int) -> Iterator[int]:
        """Rows of the requests that take a block in these decode steps, in order: for ids only."""
        size = self.batch.block_size
        members = [(live.row, live.num_computed_tokens) for live in self.decoders() if not live.reserved_tokens]
        for step in range(first, steps):
            for row, tokens in members:
                if (tokens + step) % size == 0:
                    yield row

    def _fillers(self, first: int, steps: int) -> list[tuple[RequestState, int]]:
        """Requests that fill a block in these decode steps, in order, with how many full blocks they have then."""
        size = self.batch.block_size
        filled = []
        for order, live in enumerate(self.decoders()):
            tokens = live.num_computed_tokens - self.unknown(live)
            for full in range((tokens + first) // size + 1, (tokens + steps) // size + 1):
                filled.append((full * size - tokens, order, live, full))
        filled.sort(key=lambda entry: entry[:2])
        return [(live, full) for _, _, live, full in filled]

    def unknown(self, live: RequestState) -> int:
        """How many tokens of a decoding request are not known yet when it is planned, and so are no content."""
        return 1 if self.traits.async_scheduling and live not in self.rejoined else 0

    def decoders(self) -> list[RequestState]:
        """The requests that compute a token in a decode step, in order of admission."""
        return [live for live in self.running if live.state is DECODING and not live.paused]
