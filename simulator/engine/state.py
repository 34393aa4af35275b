"""The state of a replica, and the changes that a plan may make to it.

Every change is checked first. A plan that cannot be carried out is the policy's defect, and a `PolicyError` names it.
"""

import sys
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import nan
from typing import Final

from simulator.division import cdiv
from simulator.engine.clock import Clock
from simulator.engine.decode_batch import DecodeBatch
from simulator.engine.late_fills import LateFills
from simulator.engine.parts.adapters import Adapters
from simulator.errors import PolicyError
from simulator.memory.blocks import Cache, KVBlocks, kinds_of
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.radix_cache import PageKeys, RadixCache, Symbols
from simulator.parameters import USER_MODULE
from simulator.plan import Chunk, Policy, Preemption, StepPlan
from simulator.policy_traits import OptionalMembers
from simulator.queues import make_queue
from simulator.queues.fcfs import Fcfs
from simulator.queues.in_turn import InTurn
from simulator.queues.sorted_queues import Prefixes, Ranked
from simulator.queues.weighted import CachedFirst
from simulator.request import ArrivingRequest, Request, RequestView
from simulator.request_state import (  # fmt: skip
    DECODING,
    LEAVING,
    PREFILLING,
    SWAPPED,
    WAITING,
    RequestState,
    RequestStatus,
    ScheduledChunk,
)
from simulator.results.buffers import ReplicaRecorder, Table
from simulator.timing.cost import StepShape


class LateFrees:
    """Blocks of finished requests that come free `plans` plans after the next one; `num_blocks` in all."""

    __slots__ = ("_due", "num_blocks")

    def __init__(self, plans: int) -> None:
        self._due: deque[list[tuple[int, int]]] = deque([[] for _ in range(plans + 1)])
        self.num_blocks = 0

    @property
    def ahead(self) -> tuple[int, ...]:
        """See `View.late_blocks`."""
        return tuple([sum([blocks for _, blocks in freed]) for freed in list(self._due)[:-1]])

    def put_off(self, row: int, num_blocks: int) -> None:
        """A request has finished, whose blocks come free later."""
        self._due[-1].append((row, num_blocks))
        self.num_blocks += num_blocks

    def next_plan(self, blocks: KVBlocks) -> None:
        """A plan is made: free what is due with it."""
        for row, num_blocks in self._due.popleft():
            blocks.free(row, num_blocks)
            self.num_blocks -= num_blocks
        self._due.append([])


def take_back(
    live: RequestState,
    from_s: float,
    ends_s: Sequence[float],
    batch: DecodeBatch,
    gaps: Table | None,
    *,
    late: bool,
) -> tuple[int, float]:
    """How many of its tokens are taken back, as they came at `from_s` or later, and when the one before them came.

    The gaps before them leave `gaps`, which is None where tokens are not sent one by one. `ends_s` are the ends of the
    last decode steps; `late` is whether results arrive after the next step has been planned. The request is still in
    the batch.
    """
    joined_s, ticks = live.last_token_s, 0
    if live.status is DECODING and not live.paused and not batch.is_overrun(live):
        ticks = batch.clock.ticks - live.join_tick
    elif not late:
        return 0, joined_s
    dropped = 0
    outputs = live.base_outputs + ticks
    while True:
        token_s = ends_s[-1 - dropped] if dropped < ticks else joined_s
        if dropped > ticks or not token_s >= from_s:
            return dropped, token_s
        dropped += 1
        if dropped == outputs:
            return dropped, nan
        if dropped < ticks:
            before_s = ends_s[-1 - dropped]
        elif dropped == ticks:
            before_s = joined_s
        else:
            before_s = live.before_s if live.before_s == live.before_s else _before(ends_s, joined_s)
            joined_s = before_s
        if gaps is not None:
            gaps.add((token_s - before_s, -1, token_s))


def _before(ends_s: Sequence[float], token_s: float) -> float:
    """The end of the decode step before that which gave a token."""
    return ends_s[len(ends_s) - 1 - ends_s[::-1].index(token_s) - 1]


class Unseen:
    """Whose token is on its way while a plan is made.

    `decodes`: all requests that decoded with the running step. `prompts` are those whose prompt it completes, and
    `last` those whose last token it computes. It ends at `end_s`; `decode_ends_s` are the ends of the last decode
    steps, its own among them.
    """

    __slots__ = ("decode_ends_s", "decodes", "end_s", "last", "prompts")

    def __init__(self) -> None:
        self.end_s = 0.0
        self.decode_ends_s: list[float] = []
        self.decodes = False
        self.prompts: dict[RequestState, None] = {}
        self.last: dict[RequestState, None] = {}

    def count(self, live: RequestState) -> int:
        """Its tokens on the way: 0 or 1."""
        if live in self.last or live in self.prompts:
            return 1
        return int(self.decodes and live.status is DECODING and live.join_tick < live.clock.ticks)

    def drop(self, live: RequestState) -> int:
        """`live` is retracted, and its token is thrown away when it comes; returns how many are.

        `process_batch_result_decode` passes over a retracted request (batch_result_processor.py:1017, SGLang 0.5.23).
        """
        count = self.count(live)
        self.last.pop(live, None)
        self.prompts.pop(live, None)
        return count


class QueuePrefixes:
    """The functions of `Prefixes`; looking changes nothing."""

    def __init__(self, requests: Mapping[int, Request], cache: Cache) -> None:
        self._requests = requests
        self._cache = cache
        self._tree = cache if isinstance(cache, RadixCache) else None
        self._leading: dict[int, bytes] = {}
        self._symbols: Symbols = {}

    def functions(self) -> Prefixes:
        """For a queue."""
        return Prefixes(self.hit_tokens, self.leading, self.by_subtree)

    def hit_tokens(self, live: RequestState) -> int:
        """Leading tokens that are cached; in a radix tree, perhaps all."""
        request = self._requests[live.row]
        if self._tree is None:
            return self._cache.hits(request, live.num_tokens)[0] * live.clock.block_size
        return self._tree.find(request, live.num_tokens)[0] * self._tree.block_size

    def leading(self, live: RequestState, num_tokens: int) -> bytes | None:
        """The first tokens as numbers, which are equal where the tokens are."""
        if self._tree is None or live.num_tokens < num_tokens:
            return None
        found = self._leading.get(live.row)
        if found is None:
            keys = PageKeys(self._requests[live.row], 1, self._symbols)
            found = self._leading[live.row] = keys.first(num_tokens).tobytes()
        return found

    def by_subtree(self, waiting: Sequence[RequestState]) -> list[RequestState]:
        """Depth first through the radix tree."""
        assert self._tree is not None
        lengths = [(self._requests[live.row], live.num_tokens) for live in waiting]
        return [waiting[place] for place in self._tree.by_subtree(lengths)]


_WITH_A_PROMPT: Final = (WAITING, PREFILLING)


class ReplicaState:
    """Queue, batch and memory of one replica. `running` and `prefilling` are in order of admission.

    `requests` has every unfinished request by row, with its answer: whatever a policy is given must not lead here.
    """

    __slots__ = (
        "_clock", "_keeps_finished", "_max_num_seqs", "_num_placed", "_takes_whole_prompt", "_unknown",
        "adapters", "batch", "blocks", "cache", "caps", "companion", "count_more", "cut", "decode_clock",
        "enters_late", "fills", "has_block_ids", "held", "late_frees", "lives", "looks_at_queue",
        "max_num_batched_tokens", "num_admitted", "num_leaving", "num_swapped", "orders_blocks", "paused",
        "policy", "prefilling", "ranked", "records", "refuses", "rejoined", "requests", "requeues", "running",
        "slots_by_step", "streams", "swappable", "traits", "tree", "unseen", "waiting",
    )  # fmt: skip

    def __init__(
        self, clock: Clock, policy: Policy, blocks: KVBlocks, block_size: int, records: ReplicaRecorder
    ) -> None:
        members = OptionalMembers.of(policy)
        self.policy = policy
        self.traits = members.traits
        self.refuses = members.refuses
        self.caps = members.caps
        self.companion = members.companion
        self.max_num_batched_tokens = members.max_num_batched_tokens
        self.blocks = blocks
        self.swappable, self.cache = kinds_of(blocks)
        self.tree = blocks if isinstance(blocks, RadixCache) else None
        self.unseen = Unseen() if self.traits.overlap_scheduling else None
        self.cut: RequestState | None = None  # its last chunk enters the radix tree with the next plan
        self.looks_at_queue = 0  # so often a plan looked at a queue that was not empty
        if isinstance(blocks, (PrefixCache, PrefixLedger)):
            blocks.unknown_first = self.traits.unknown_blocks_first
        self.batch = DecodeBatch(block_size)
        self.decode_clock = self.batch.clock
        self.requests: dict[int, Request] = {}
        self.lives: dict[int, RequestState] = {}  # the same ones, if clients may abort them
        self.waiting = make_queue(self.traits.order)
        self.ranked = self.waiting if isinstance(self.waiting, Ranked) else None
        if self.cache is not None and isinstance(self.waiting, (Ranked, CachedFirst)):
            self.waiting.prefixes = QueuePrefixes(self.requests, self.cache).functions()
        self.batch.meter = self.waiting.meter
        self.running: dict[RequestState, None] = {}
        self.prefilling: dict[RequestState, None] = {}
        self.paused: tuple[RequestState, ...] = ()
        self.held: list[RequestState] = []  # finished, and in their slots until the whole batch has finished
        max_loras = self.traits.max_loras
        self.adapters = None if max_loras is None else Adapters(max_loras, clock, records.adapters)
        self.count_more = self._counted if self.adapters is not None or self.traits.encodes_images else None
        self.num_swapped = 0
        self.num_leaving = 0  # running requests with status LEAVING
        self.num_admitted = 0
        self._num_placed = 0  # requests that were put at the end of the batch, so often
        self.rejoined: Collection[RequestState] = ()  # paused in the step planned before, and decoding again
        self.late_frees = LateFrees(self.traits.frees_late)
        self.records, self.requeues = records, records.requeues
        self.has_block_ids = blocks.by_id is not None
        # Whether running requests take their blocks one after the other: who takes which matters, or who enters first.
        self.orders_blocks = self.has_block_ids
        # Blocks filled by decoding enter the cache as their request leaves, unless others may find them before.
        self.enters_late = self.cache is not None and self.cache.keys is not None
        self.fills: LateFills | None = None  # has them enter late though others may find them
        self._unknown = int(self.traits.async_scheduling)  # tokens of what is computed, where a plan is made
        if self.has_block_ids or self.cache is not None:
            self.batch.keep_members()
        self._max_num_seqs = policy.max_num_seqs
        self._keeps_finished = self.traits.keeps_finished
        self._takes_whole_prompt = self.traits.takes_whole_prompt
        self.streams = self.traits.streams
        self.slots_by_step = self.traits.slots_by_step
        self._clock = clock

    def broken(self, what: str) -> PolicyError:
        """The error for a plan that cannot be carried out, which `what` says of "plan"."""
        policy = type(self.policy)
        file = sys.modules[policy.__module__].__file__ if policy.__module__.startswith(USER_MODULE) else None
        step, now_s = self.records.num_steps, self._clock.now
        return PolicyError(f"{policy.__name__} at step {step:,} ({round(now_s, 6)} s): plan {what}", file=file)

    def _counted(self, shape: StepShape, prefill: Sequence[ScheduledChunk], plan: StepPlan) -> StepShape:
        """The shape of a step that computes these chunks, with its adapters and images."""
        if self.adapters is not None:
            shape = self.adapters.counted(shape, prefill)
        embeddings: int = getattr(plan.note, "embeddings", 0)
        return shape._replace(embeddings=embeddings) if embeddings else shape

    def tokens_left(self, live: RequestState) -> int:
        """Tokens of a request's answer that are not sampled yet; the request is not in the decode batch."""
        return self.requests[live.row].output_tokens - live.base_outputs

    def cached_tokens(self, request: ArrivingRequest) -> int:
        """Leading tokens of an arriving request's prompt that the prefix cache holds."""
        if self.cache is None:
            return 0
        hits, _ = self.cache.hits(request.prompt(), request.input_tokens)
        if request.row not in self.requests:
            self.cache.end(request.row)  # it may go elsewhere: nothing of it is to be kept
        return hits * self.batch.block_size

    def preempt(self, preemption: Preemption, now_s: float, more_blocks: int = 0) -> int:
        """Return a request from the batch to the queue; returns the blocks swapped out.

        `more_blocks` it took in this step, for tokens that are not computed yet.
        """
        live = self._live(preemption.request, (DECODING, PREFILLING, LEAVING))
        blocks = live.num_blocks + more_blocks
        self.enter_decoded(live, live.num_computed_tokens)
        decoding = live.status is DECODING
        lost, last_s = self._take_back_unseen(live)
        if live.status is LEAVING:
            self.num_leaving -= 1
        elif not decoding:
            del self.prefilling[live]
        elif live.paused:
            self.paused = tuple([other for other in self.paused if other is not live])
            live.paused = False
        else:
            self.batch.leave(live)
        del self.running[live]
        if self.adapters is not None:
            self.adapters.preempted(live, now_s)
        if lost:
            live.lose_outputs(lost, last_s)
        setbacks = live.set_back()
        setbacks.preemptions += 1
        setbacks.left_s = now_s
        if preemption.swap:
            if self.traits.async_scheduling:
                raise self.broken("swaps, which asynchronous scheduling does not allow")
            if not decoding or live.reserved_tokens:
                raise self.broken(f"swaps request {live.request_id}, whose prompt is not computed or KV is reserved")
            host = self.swappable
            if host is None or blocks > host.num_free_host:
                free = 0 if host is None else host.num_free_host
                raise self.broken(f"swaps request {live.request_id}: {blocks} blocks, the host has {free} free")
            host.swap_out(live.row, blocks)
            setbacks.swapped_out_blocks += blocks
            self.num_swapped += 1
            live.status = SWAPPED
        else:
            (self.blocks.free if self.cache is None else self.cache.lose)(live.row, blocks)
            live.status = WAITING
            setbacks.recomputed_tokens += live.forget()
        (self.waiting.push if self.traits.victims_last else self.waiting.put_back)(live)
        return blocks if preemption.swap else 0

    def enter_decoded(self, live: RequestState, computed_tokens: int) -> None:
        """Enter what decoding has filled of a request into the cache, as far as it is known, as it leaves the batch."""
        full_blocks = (computed_tokens - self._unknown) // self.batch.block_size
        if self.fills is not None:
            self.fills.left(live, full_blocks)
        elif self.cache is not None and self.enters_late:
            self.cache.enter(self.requests[live.row], full_blocks)

    def _take_back_unseen(self, live: RequestState) -> tuple[int, float]:
        """Throw away the token of a request to be preempted that is on its way, where plans do not see it."""
        if self.unseen is None or not self.unseen.drop(live):
            return 0, live.last_token_s
        gaps = self.records.late_gaps if self.traits.streams else None
        return take_back(live, self.unseen.end_s, self.unseen.decode_ends_s, self.batch, gaps, late=True)

    def forget_preemption(self, live: RequestState, now_s: float) -> None:
        """A victim leaves the queue, as its last token was being computed when it was preempted."""
        self.waiting.remove(live)
        live.set_back().recomputed_tokens -= live.lost_tokens
        live.lost_tokens = 0
        self._no_longer_waits(live, now_s, swapped=False)

    def requeue(self, views: tuple[RequestView, ...]) -> None:
        """Put these waiting requests to the front of the queue, in this order."""
        if not isinstance(self.waiting, (Fcfs, InTurn)):
            raise self.broken(f"reorders a queue whose order is {self.traits.order}")
        self.waiting.requeue(tuple([self._live(view, (WAITING, SWAPPED)) for view in views]))

    def drop_waiting(self, live: RequestState, now_s: float) -> None:
        """A waiting request leaves the queue, as it was aborted."""
        self.waiting.drop(live)
        swapped = live.status is SWAPPED
        if swapped:
            assert self.swappable is not None
            self.swappable.free_host(live.row, cdiv(live.num_computed_tokens, self.batch.block_size))
            self.num_swapped -= 1
        if live.num_preemptions:
            setbacks = live.set_back()
            setbacks.recomputed_tokens -= live.lost_tokens
            setbacks.requeued_s += now_s - setbacks.left_s
            self.requeues.add((live.row, setbacks.left_s, nan, swapped))

    def resume(self, view: RequestView, now_s: float) -> int:
        """Bring a swapped request back into the batch; returns the blocks swapped in."""
        live = self._live(view, (SWAPPED,))
        blocks = cdiv(live.num_computed_tokens, self.batch.block_size)
        if blocks > self.blocks.num_free:
            free = self.blocks.num_free
            raise self.broken(f"resumes request {live.request_id}, which takes {blocks} blocks; {free} are free")
        self.waiting.remove(live)
        assert self.swappable is not None
        self.swappable.swap_in(live.row, blocks)
        self.num_swapped -= 1
        live.set_back().swapped_in_blocks += blocks
        self._no_longer_waits(live, now_s, swapped=True)
        self._admit(live)
        self.batch.join(live, self.tokens_left(live))
        return blocks

    def take_in(self, live: RequestState) -> None:
        """Let a request decode whose KV, first token included, another replica computed; it has its blocks."""
        self._admit(live)
        self.batch.join(live, self.tokens_left(live))

    def set_paused(self, paused: tuple[RequestView, ...]) -> bool:
        """Pause exactly these decoding requests for the step; returns whether that is a change."""
        self.rejoined = ()
        if not paused and not self.paused:
            return False
        now = tuple([self._live(view, (DECODING,)) for view in paused])
        if now == self.paused:
            return False
        if self.fills is not None:
            self.fills.settle()
        stay = set(now)
        if len(stay) < len(now):
            raise self.broken("pauses a request twice")
        self.rejoined = [live for live in self.paused if live not in stay]
        for live in self.rejoined:
            self.batch.join(live, self.tokens_left(live))
        for live in now:
            if not live.paused:
                self.batch.leave(live)
                live.paused = True
        self.paused = now
        self._check_slots()
        return True

    def compute(self, chunk: Chunk, now_s: float, hits: int | None = None) -> ScheduledChunk:
        """Admit the chunk's request if it waits, and take the blocks that the chunk needs: see `place`."""
        live, owned = self.place(chunk, now_s, hits)
        return self.take(chunk, live, owned)

    def place(self, chunk: Chunk, now_s: float, hits: int | None = None) -> tuple[RequestState, int]:
        """Admit the chunk's request if it waits, with what is cached (`hits`); returns it and the blocks it owns."""
        view, _, reserve, padding = chunk
        live = self._live(view, _WITH_A_PROMPT)
        if live.status is not WAITING:
            return live, live.num_blocks
        self.waiting.remove(live)
        self.admit(live, now_s)
        owned = 0 if self.cache is None else self._take_hits(live, self.cache, hits)
        if reserve or padding or self._keeps_finished:
            self._grant(live, reserve, padding)
        elif self._takes_whole_prompt:
            live.reserved_tokens = live.num_tokens  # until it decodes
        return live, owned

    def take(self, chunk: Chunk, live: RequestState, owned: int) -> ScheduledChunk:
        """Take the blocks that the chunk of a placed request needs."""
        tokens = chunk.num_tokens
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
            full_blocks = min(computed + tokens, live.num_tokens) // self.batch.block_size
            self.cache.enter(self.requests[live.row], full_blocks)
        padding = live.padding_tokens - computed
        return live, tokens, min(padding, tokens) if padding > 0 else 0

    def waiting_request(self, view: RequestView) -> RequestState:
        """The waiting request behind a view."""
        return self._live(view, (WAITING,))

    def admit(self, live: RequestState, now_s: float) -> None:
        """Let a request that has left the queue compute its prompt."""
        self._admit(live)
        live.status = PREFILLING
        self.prefilling[live] = None
        if live.scheduled_s != live.scheduled_s:
            live.scheduled_s = now_s
        else:
            self._no_longer_waits(live, now_s, swapped=False)

    def _take_hits(self, live: RequestState, cache: Cache, hits: int | None) -> int:
        """Give the request its cached leading blocks, so many if that is known; returns how many."""
        request = self.requests[live.row]
        hits = cache.hits(request, live.num_tokens)[0] if hits is None else hits
        cache.take_hits(request, hits)
        live.found(hits * self.batch.block_size)
        return hits

    def _grant(self, live: RequestState, reserve: int, padding: int) -> None:
        most = live.input_tokens + padding + live.max_tokens - 1  # the last token is never computed
        if reserve < most:
            raise self.broken(f"reserves {reserve} tokens for request {live.request_id}, which may come to need {most}")
        live.reserved_tokens = reserve
        live.padding_tokens = padding

    def move_to_end(self, requests: Iterable[RequestView]) -> None:
        """Let these running requests come last in the batch, in this order."""
        for view in requests:
            live = self._live(view, (PREFILLING, DECODING))
            del self.running[live]
            self.running[live] = None
            self._num_placed += 1
            live.place = self._num_placed

    def _admit(self, live: RequestState) -> None:
        self.num_admitted += 1
        self._num_placed += 1
        live.place = self._num_placed
        live.admission = self.num_admitted
        self.running[live] = None
        if self.adapters is not None and not self.adapters.entered(live):
            raise self.broken(f"uses {len(self.adapters.running)} adapters; max_loras is {self.adapters.max_loras}")
        if len(self.running) + len(self.held) > self._max_num_seqs:
            self._check_slots()

    def _check_slots(self) -> None:
        """Raise PolicyError if the batch exceeds its slots; paused requests need none."""
        if self.slots_by_step:
            return  # `Replica.begin_step` looks at those that compute
        seqs = len(self.running) - len(self.paused) + len(self.held)
        if seqs > self._max_num_seqs:
            raise self.broken(f"runs {seqs:,} requests; max_num_seqs is {self._max_num_seqs:,}")

    def _no_longer_waits(self, live: RequestState, now_s: float, *, swapped: bool) -> None:
        setbacks = live.set_back()
        setbacks.requeued_s += now_s - setbacks.left_s
        self.requeues.add((live.row, setbacks.left_s, now_s, swapped))

    def _live(self, view: RequestView, allowed: tuple[RequestStatus, ...]) -> RequestState:
        """The request behind a view, which must be one of this replica and have one of the statuses allowed."""
        if not isinstance(view, RequestState) or view.clock is not self.decode_clock:
            raise self.broken(f"names {view!r}, which is no request of this replica")
        if view.status not in allowed:
            expected = " or ".join([status.value for status in allowed])
            raise self.broken(f"names request {view.request_id}, which is {view.status.value} and not {expected}")
        return view

    def settle(self, live: RequestState) -> None:
        """Insert what is computed of a prompt into the radix tree."""
        assert self.tree is not None
        self.tree.settle([live.row])

    def settle_cut(self) -> None:
        """A plan begins: the chunk of the prompt that goes on is known (`stash_chunked_request`, scheduler.py:3772)."""
        if self.cut is not None and self.cut.status is PREFILLING:
            self.settle(self.cut)
        self.cut = None

    def fill_late(self) -> None:
        """Let what decoding fills enter the prefix cache late: the replica applies plans in order, its own alone."""
        if isinstance(blocks := self.blocks, PrefixLedger):
            self.fills = LateFills(self.requests, self.decode_clock, blocks, self.unknown if self._unknown else None)

    def unknown(self, live: RequestState) -> int:
        """Tokens of a decoding request that are not known yet when it is planned, and so cannot be cached."""
        return 1 if self.traits.async_scheduling and live not in self.rejoined else 0

    def decoders(self) -> list[RequestState]:
        """The requests that compute a token in a decode step, in order of admission."""
        return [live for live in self.running if live.status is DECODING and not live.paused]
