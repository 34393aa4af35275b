"""A replica as its policy sees it: objects that do not lead to the length of any answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, cast

from simulator.division import cdiv
from simulator.engine.state import ReplicaState
from simulator.memory.radix_cache import Node
from simulator.plan import BatchView, KVGroups, PrefixMatches, WaitingView
from simulator.queues.decoding_order import DecodingByLevel, DecodingByRank
from simulator.request import RequestView
from simulator.request_state import DECODING, RequestState, ScheduledChunk, place
from simulator.speculative import Drafting
from simulator.timing.cost import StepShape
from simulator.timing.executor import Outlook


class RecomputeTime(Protocol):
    """The type of `View.recompute_s`."""

    def __call__(self, request: RequestView, *, mixed: bool = True) -> float | None: ...


class ReplicaView:
    """See `simulator.plan.View` for the meaning of the members; a `Viewer` sets them before each plan."""

    __slots__ = (
        "_clock", "admitted_tick", "block_size", "block_takers", "blocks_freed", "caches_prefixes",
        "decode_blocks_needed", "decoding_last_first", "drafting", "groups", "known_outputs", "late_blocks", "note",
        "now_s", "num_blocks", "num_decoding", "num_free_blocks", "num_free_host_blocks", "num_swapped", "prefilling",
        "prefix_hits", "prefix_matches", "recompute_s", "running", "running_loras", "step_tokens", "swap_s",
        "waiting",
    )  # fmt: skip

    def __init__(self, viewer: Viewer, state: ReplicaState) -> None:
        self.waiting = cast("WaitingView", state.waiting)
        self.running = cast("BatchView", state.running.keys())
        self.prefilling = cast("BatchView", state.prefilling.keys())
        self.running_loras: Mapping[str, int] = {} if state.adapters is None else state.adapters.running
        self.block_size = state.decode_clock.block_size
        self.num_blocks = state.blocks.num_blocks
        self.caches_prefixes = state.cache is not None
        # The view's own methods would need the state at hand, and so would offer it to the policy.
        self.block_takers = viewer.block_takers
        self.blocks_freed = viewer.blocks_freed
        self.decoding_last_first = viewer.decoding_last_first
        self.recompute_s: RecomputeTime = viewer.recompute_s
        self.swap_s = viewer.swap_s
        self.prefix_hits = viewer.prefix_hits
        self.prefix_matches = viewer.prefix_matches
        self.known_outputs = viewer.known_outputs
        self.now_s = 0.0
        self.step_tokens: int | None = None
        self.note: object = None
        self.num_decoding = 0
        self.num_swapped = 0
        self.num_free_blocks = 0
        self.num_free_host_blocks = 0
        self.decode_blocks_needed = 0
        self.late_blocks = state.late_frees.ahead
        self.drafting: Drafting | None = None
        self.groups: KVGroups | None = None
        self.admitted_tick = 0  # the clock's ticks at the last admission
        self._clock = state.decode_clock

    @property
    def decode_steps(self) -> int:
        return self._clock.ticks

    @property
    def executed_steps(self) -> int:
        return self._clock.ticks + self._clock.prompt_steps

    @property
    def prefills_throttled(self) -> bool | None:
        return self._clock.throttled

    @property
    def decode_steps_since_admission(self) -> int:
        return self._clock.ticks - self.admitted_tick


class Viewer:
    """Keeps `view` as the replica is when its policy is asked."""

    __slots__ = (
        "_decodes_now", "_found", "_frees_late", "_host", "_num_admitted", "_order_at", "_outlook", "_scheduled",
        "_state", "view",
    )  # fmt: skip

    def __init__(self, state: ReplicaState, outlook: Outlook | None) -> None:
        self._state = state
        self._outlook = outlook
        self._num_admitted = 0  # up to the last look
        self._scheduled: Sequence[ScheduledChunk] = ()  # with the parts of the step's plan that have been applied
        self._decodes_now = False  # these parts have taken the blocks of the step's decodes
        self._found: tuple[RequestView, int] | None = None  # the last look-up for this part of the plan
        self._frees_late = state.traits.frees_late > 0
        host = state.swappable
        self._host = host if host is not None and host.num_host_blocks else None
        self._order_at = None if state.waiting.timeless else state.waiting.at
        self.view = ReplicaView(self, state)

    def look(self, now_s: float, *, sorts: bool = True) -> None:
        """Show the replica as it is at `now_s`; `sorts`: the queue too, where time changes its order."""
        state, view = self._state, self.view
        view.now_s = now_s
        if sorts and self._order_at is not None:
            self._order_at(now_s)
        if state.num_admitted != self._num_admitted:
            self._num_admitted = state.num_admitted
            view.admitted_tick = state.decode_clock.ticks
        view.step_tokens = None
        self._scheduled = ()
        self._decodes_now = False
        view.num_decoding = len(state.running) - len(state.prefilling) - state.num_leaving
        view.num_free_blocks = state.blocks.num_free
        if self._host is not None:
            view.num_swapped = state.num_swapped
            view.num_free_host_blocks = self._host.num_free_host
        view.decode_blocks_needed = state.batch.blocks_needed()
        if self._frees_late:
            view.late_blocks = state.late_frees.ahead
        if state.paused:
            size = view.block_size
            boundary = [live.base_computed % size == 0 and not live.reserved_tokens for live in state.paused]
            view.decode_blocks_needed += sum(boundary)

    def look_again(self, step_tokens: int, scheduled: Sequence[ScheduledChunk], *, decodes: bool) -> None:
        """Show the replica after the first parts of the step's plan, which scheduled these chunks, and the decodes."""
        state, view = self._state, self.view
        if state.paused or len(state.running) - len(state.prefilling) - state.num_leaving != view.num_decoding:
            # The requests that this part admitted have not been in a step yet.
            seen = self._num_admitted, view.admitted_tick
            self.look(view.now_s, sorts=False)
            self._num_admitted, view.admitted_tick = seen
        else:  # admissions take blocks, and change nothing else that is looked at
            view.num_free_blocks = state.blocks.num_free
        view.step_tokens = step_tokens
        self._scheduled = scheduled
        self._decodes_now = decodes
        self._found = None

    def found(self, request: RequestView) -> int | None:
        """The cached blocks that the policy was told of as it made this part of the plan, whose first request this is.

        None where it did not ask for them last. Nothing may have been applied since.
        """
        found, self._found = self._found, None
        return found[1] if found is not None and found[0] is request else None

    def decoding_last_first(self) -> Iterator[RequestView] | None:
        """See `View.decoding_last_first`."""
        listed = self._state.waiting.meter
        if isinstance(listed, (DecodingByLevel, DecodingByRank)) and len(listed) >= self.view.num_decoding:
            return listed.last_first()
        return None

    def block_takers(self) -> list[RequestState]:
        """See `View.block_takers`."""
        state, size = self._state, self.view.block_size
        batch = state.batch
        known = state.running if batch.members is None else (*batch.at_block_ends(0, 1), *state.paused)
        found = [
            live
            for live in known
            if live.status is DECODING and not live.num_computed_tokens % size and not live.reserved_tokens
        ]
        found.sort(key=place)
        return found

    def blocks_freed(self, requests: Sequence[RequestView]) -> int:
        """See `View.blocks_freed`."""
        cache = self._state.cache
        if cache is None:
            return sum([request.num_blocks for request in requests])
        held = {request.row: request.num_blocks for request in requests}
        if self.view.step_tokens is not None:
            self._add_taken(held)
        return cache.freed_with(held)

    def _add_taken(self, held: dict[int, int]) -> None:
        """Count the blocks that running requests have taken in this very step, too."""
        size = self.view.block_size
        scheduled = [(live, tokens) for live, tokens, _ in self._scheduled]
        if self._decodes_now:
            scheduled += [(live, 1) for live in self._state.decoders()]
        for live, tokens in scheduled:
            if live.row in held:
                held[live.row] = max(held[live.row], cdiv(live.num_computed_tokens + tokens, size))

    def recompute_s(self, request: RequestView, *, mixed: bool = True) -> float | None:
        """See `View.recompute_s`."""
        if self._outlook is None:
            return None
        return self._outlook.recompute_s(request.num_tokens, self._decodes() if mixed else StepShape(0, 0))

    def swap_s(self, request: RequestView) -> float | None:
        """See `View.swap_s`."""
        if self._outlook is None:
            return None
        return self._outlook.swap_s(request.num_blocks, self._decodes())

    def _decodes(self) -> StepShape:
        """The shape of a step that only continues the present decodes."""
        batch = self._state.batch
        if not batch.size:
            return StepShape(0, 0)
        return StepShape(batch.size, batch.context + batch.size, 0, 0, 0, 0, *batch.next_context_stats())

    def prefix_hits(self, request: RequestView) -> tuple[int, int]:
        """See `View.prefix_hits`."""
        state = self._state
        if state.cache is None or not isinstance(request, RequestState):
            return 0, 0
        hits = state.cache.hits(state.requests[request.row], request.num_tokens)
        self._found = request, hits[0]
        return hits

    def prefix_matches(self) -> PrefixMatches:
        """See `View.prefix_matches`."""
        state = self._state
        tree, requests = state.tree, state.requests
        if tree is None:
            raise state.broken("looks prefixes up in a radix tree, which this replica does not have")
        kept: dict[Node, int] = {}

        def look(request: RequestView) -> tuple[int, int]:
            return tree.tree.look(tree.pages_to_find(requests[request.row], request.num_tokens), kept)

        def keep(request: RequestView) -> None:
            tree.tree.keep(tree.pages_to_find(requests[request.row], request.num_tokens), kept)

        return PrefixMatches(look, keep)

    def known_outputs(self, request: RequestView) -> int:
        """See `View.known_outputs`."""
        unseen = self._state.unseen
        if unseen is None or not isinstance(request, RequestState):
            return request.output_tokens_so_far
        return request.output_tokens_so_far - unseen.count(request)
