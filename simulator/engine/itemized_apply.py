"""Plans applied request by request, in the order of vLLM's scheduler: running requests, their victims, admissions.

Every part is checked first, as in `simulator.engine.state`.
"""

from collections.abc import Callable
from typing import cast

from simulator.division import cdiv
from simulator.engine.itemized_step import ItemizedRequest, Scheduled
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.plan import Chunk, Preemption, StepPlan
from simulator.request import RequestView
from simulator.request_state import DECODING, PREFILLING
from simulator.speculative import SpeculativeConfig


class ItemizedMemory:
    """KV blocks of layers that all keep all tokens; `simulator.engine.parts.groups` has those of several kinds.

    A step's blocks cover the drafter's `lookahead` too, up to the `longest` context.
    """

    __slots__ = (
        "_ahead",
        "_cache",
        "_hits",
        "_kept_out",
        "_longest",
        "_lookahead",
        "_size",
        "_state",
        "enters",
    )  # fmt: skip

    def __init__(self, state: ReplicaState, config: SpeculativeConfig, longest: int) -> None:
        self._state = state
        self._cache = state.cache
        self.enters = state.cache is not None  # there is a prefix cache to enter
        self._size = state.batch.block_size
        self._longest = longest
        self._lookahead = config.num_lookahead_tokens
        self._ahead = config.num_hash_lookahead_tokens  # known tokens that a key covers beyond its block
        self._kept_out = max(0, config.num_prefill_lookahead_tokens - 1)
        self._hits = 0

    def refusal(self, num_tokens: int) -> str | None:
        """The reason why no request of so many tokens could ever be served; None where blocks are alike."""
        return None

    def placed(self, live: ItemizedRequest, num_tokens: int) -> None:
        """A request enters the batch, its hits taken with its place (`ReplicaState.place`)."""

    def look(self, live: ItemizedRequest) -> int:
        """Leading tokens of a waiting request that are cached; `admit` takes them."""
        cache, request = self._cache, self._state.requests[live.row]
        self._hits = 0 if cache is None else cache.hits(request, live.num_tokens)[0]
        return self._hits * self._size

    def admit(self, live: ItemizedRequest, num_tokens: int, loaded: int = 0) -> None:
        """Take what `look` found of a request, and the blocks of `loaded` tokens behind it; no victim gives them."""
        state = self._state
        if self._cache is not None:
            self._cache.take_hits(state.requests[live.row], self._hits)
        needed = cdiv(live.base_computed, self._size) - self._hits
        if needed > state.blocks.num_free:
            what = f"loads {needed} blocks for request {live.request_id}; {state.blocks.num_free} are free"
            raise state.broken(what)
        if needed:
            state.blocks.allocate(live.row, needed)

    def take(self, live: ItemizedRequest, num_tokens: int) -> bool:
        """Take the blocks of a running request's next tokens, and of what the drafter writes behind them.

        Returns whether there were so many. What the request no longer needs has come free before.
        """
        room = live.base_computed + num_tokens + self._lookahead
        if room > self._longest:
            room = self._longest
        if room > live.reserved_tokens:
            blocks = self._state.blocks
            needed = cdiv(room, self._size) - live.num_blocks
            if needed > blocks.num_free:
                return False
            if needed > 0:
                blocks.allocate(live.row, needed)
            live.reserved_tokens = room
        return True

    def drop(self, live: ItemizedRequest) -> None:
        """Free the blocks that a running request no longer needs: none, where all tokens are kept."""

    def ends(self, live: ItemizedRequest) -> None:
        """A request ends: as `drop`."""

    def enter(self, live: ItemizedRequest, num_tokens: int) -> None:
        """Enter the full blocks of a request's first tokens into the prefix cache, as far as it keeps them.

        A key that looks ahead needs the tokens behind its block. What several MTP modules may compute again stays out.
        """
        if self._cache is None:
            return
        kept = min(num_tokens - self._kept_out, live.num_tokens - self._ahead)
        if kept > 0:
            self._cache.enter(self._state.requests[live.row], kept // self._size)


class ItemizedPlans:
    """Applies the plans of one replica. Of the last: `last_part`, and whether its step `needs_drafts`.

    `admits` and `settles` are a connector's, where there is one: a part may then settle loads that have ended, those
    of its `tried` requests, and admit what holds a load.
    """

    __slots__ = (
        "_config", "_longest", "_state", "_victims", "_viewer", "admits", "last_part", "memory", "needs_drafts",
        "scheduled", "settles",
    )  # fmt: skip

    def __init__(self, state: ReplicaState, viewer: Viewer, config: SpeculativeConfig, max_model_len: int) -> None:
        self._state = state
        self._viewer = viewer
        self._config = config
        self._longest = max_model_len
        self.memory = ItemizedMemory(state, config, max_model_len)
        self.admits: Callable[[Chunk, float], None] | None = None
        self.settles: Callable[[RequestView], None] | None = None
        self._victims: list[Preemption] = []
        self.scheduled: list[Scheduled] = []
        self.needs_drafts = False
        self.last_part = StepPlan()

    def apply(self, plan: StepPlan, now_s: float) -> list[Scheduled]:
        """Apply `plan` and its further parts; returns what the step computes, in order."""
        state = self._state
        if plan.resume or plan.decode or any(preemption.swap for preemption in plan.preempt):
            raise state.broken("swaps, or decodes without chunks, which speculative decoding does not allow")
        self.scheduled, self.needs_drafts = [], False
        chunks = {chunk.request: chunk for chunk in plan.prefill}
        given = {preemption.request: preemption.scheduled_tokens for preemption in plan.preempt}
        if len(chunks) < len(plan.prefill) or not chunks.keys().isdisjoint(given):
            raise state.broken("computes a request twice, or one that it preempts")
        self._victims = list(plan.preempt)
        if chunks or given or plan.tried:
            self._run_on(chunks, given, plan, now_s)
        part = plan
        while part.more:
            part = self._next_part(part, now_s)
        self.last_part = part
        self._viewer.view.note = part.note
        return self.scheduled

    def _run_on(
        self,
        chunks: dict[RequestView, Chunk],
        given: dict[RequestView, int],
        plan: StepPlan,
        now_s: float,
    ) -> None:
        """Schedule the running requests in order; victims leave as blocks are lacking.

        A victim without tokens is its own, and leaves in its turn, unless it is `paused`: it was passed over. One that
        was `tried` and got no blocks has dropped those that it no longer needs.
        """
        paused, tried = plan.paused, plan.tried or ()
        for live in list(self._state.running):
            if live not in self._state.running:
                continue  # a victim that has left
            chunk = chunks.pop(live, None)
            if chunk is not None:
                self.scheduled.append(self._schedule(live, chunk.num_tokens, now_s))
            elif given.get(live):
                self._schedule(live, given[live], now_s)
            elif live in tried:
                self.memory.drop(cast(ItemizedRequest, live))
            elif live in given and live not in paused:
                self.memory.drop(cast(ItemizedRequest, live))
                while live in self._state.running:
                    self._preempt(now_s)
        while self._victims:
            self._preempt(now_s)
        for chunk in chunks.values():
            self._admit(chunk, now_s)

    def _next_part(self, before: StepPlan, now_s: float) -> StepPlan:
        """Ask for the next part and apply it."""
        state, viewer = self._state, self._viewer
        view = viewer.view
        view.note = before.note
        viewer.look_again(sum([part.tokens for part in self.scheduled]), (), decodes=False)
        plan: object = state.policy.plan(view)
        if not isinstance(plan, StepPlan) or plan.preempt or plan.resume or plan.paused:
            raise state.broken(f"continues with {plan!r}; later parts may only admit requests")
        settled = () if self.settles is None else plan.tried or ()
        if plan.more and not (plan.prefill or settled):
            raise state.broken("sets more=True but admits nothing")
        for request in settled:
            if self.settles is not None:
                self.settles(request)
        for chunk in plan.prefill:
            self._admit(chunk, now_s)
        return plan

    def _admit(self, chunk: Chunk, now_s: float) -> None:
        if self.admits is not None:
            self.admits(chunk, now_s)
            return
        state = self._state
        state.waiting_request(chunk.request)
        if chunk.reserve_tokens or chunk.padding_tokens or not chunk.num_tokens:
            raise state.broken("reserves, pads or computes nothing of a request, which drafts do not allow")
        placed, _ = state.place(chunk, now_s)
        live = cast(ItemizedRequest, placed)
        self.memory.placed(live, chunk.num_tokens)
        self.admitted(live, chunk.num_tokens, now_s)

    def admitted(self, live: ItemizedRequest, tokens: int, now_s: float) -> None:
        """Schedule the first tokens of a request that runs from now on, and has what was found of it."""
        part = self._schedule(live, tokens, now_s)
        part.admitted = True
        self.scheduled.append(part)

    def _preempt(self, now_s: float) -> None:
        if not self._victims:
            raise self._state.broken("lacks the blocks that it takes")
        victim = self._victims.pop(0)
        live = cast(ItemizedRequest, victim.request)
        live.take_back()
        self._state.preempt(victim, now_s)

    def schedule_again(self, live: ItemizedRequest, tokens: int, now_s: float) -> Scheduled:
        """Schedule a request as the plan did that still holds; blocks are there."""
        return self._schedule(live, tokens, now_s)

    def _schedule(self, view: RequestView, tokens: int, now_s: float) -> Scheduled:
        """Take the blocks of a request's next tokens and of the drafter's behind them."""
        state, longest, memory = self._state, self._longest, self.memory
        live = cast(ItemizedRequest, view)
        computed, known = live.base_computed, live.input_tokens + live.base_outputs
        left = live.num_tokens_to_compute
        padded = tokens > left == 1 and live.status is PREFILLING
        if not 0 < tokens <= (1 + self._config.num_speculative_tokens if padded else left):
            raise state.broken(f"computes {tokens} tokens of request {live.request_id}, which has {left} left")
        if computed + tokens >= longest and live.status is DECODING:
            raise state.broken(f"computes request {live.request_id} beyond max_model_len = {longest:,}")
        while not memory.take(live, tokens):
            self._preempt(now_s)
            if live not in state.running:
                raise state.broken(f"preempts request {live.request_id}, which it computes")
        if memory.enters:
            memory.enter(live, min(computed + tokens, known))
        drafts = max(0, tokens + computed - known - live.num_output_placeholders)
        live.num_drafts = 0
        if computed + tokens >= known:
            least = live.base_outputs + 1 + (live.num_output_placeholders > 0)
            self.needs_drafts = self.needs_drafts or least < live.max_tokens
        return Scheduled(live, tokens, drafts, padded=padded)

    def check_budget(self, budget: float) -> None:
        """Raise PolicyError for a step beyond the budget, which counts the slots of drafts too."""
        slots = self._config.draft_slots
        tokens = sum([part.tokens + slots for part in self.scheduled])
        if tokens > budget:
            raise self._state.broken(f"computes {tokens:,} tokens; max_num_batched_tokens is {int(budget):,}")
