"""Plans with drafts applied, in the order of vLLM's scheduler: running requests, their victims, admissions one by one.

Every part is checked first, as in `simulator.engine.state`.
"""

from collections.abc import Iterator
from typing import cast

from simulator.division import cdiv
from simulator.engine.itemized_step import DraftingRequest, Scheduled
from simulator.engine.parts.request_groups import RequestGroups
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.plan import Chunk, Preemption, StepPlan
from simulator.request import RequestView
from simulator.request_state import DECODING, PREFILLING
from simulator.speculative.config import SpeculativeConfig

# Plans with drafts applied, in the order of vLLM's scheduler: running requests, their victims, admissions one by
# one.
# Every part is checked first, as in `simulator.engine.state`.


class DraftedPlans:
    """Applies the plans of one replica. Of the last: `last_part`, and whether its step `needs_drafts`."""

    __slots__ = (
        "_ahead",
        "_cache",
        "_config",
        "_kept_out",
        "_longest",
        "_lookahead",
        "_state",
        "_victims",
        "_viewer",
        "groups",
        "last_part",
        "needs_drafts",
        "scheduled",
    )

    def __init__(self, state: ReplicaState, viewer: Viewer, config: SpeculativeConfig, max_model_len: int) -> None:
        self._state = state
        self._viewer = viewer
        self._config = config
        self._longest = max_model_len
        self._cache = state.cache
        self._lookahead = config.num_lookahead_tokens
        self._ahead = config.num_hash_lookahead_tokens  # known tokens that a key covers beyond its block
        self.groups: RequestGroups | None = None  # of a memory with several
        self._kept_out = max(0, config.num_prefill_lookahead_tokens - 1)
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
                self._drop(live)
            elif live in given and live not in paused:
                self._drop(live)
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
        if plan.more and not plan.prefill:
            raise state.broken("sets more=True but admits nothing")
        for chunk in plan.prefill:
            self._admit(chunk, now_s)
        return plan

    def _admit(self, chunk: Chunk, now_s: float) -> None:
        state = self._state
        state.waiting_request(chunk.request)
        if chunk.reserve_tokens or chunk.padding_tokens or not chunk.num_tokens:
            raise state.broken("reserves, pads or computes nothing of a request, which drafts do not allow")
        live, _ = state.place(chunk, now_s)
        if self.groups is not None:
            hit = self.groups.blocks.hit(state.requests[live.row], live.num_tokens)
            live.found(hit.tokens)
            self.groups.blocks.admit(self.groups.asked(live, hit.tokens, chunk.num_tokens), hit)
        part = self._schedule(live, chunk.num_tokens, now_s)
        part.admitted = True
        self.scheduled.append(part)

    def _preempt(self, now_s: float) -> None:
        if not self._victims:
            raise self._state.broken("lacks the blocks that it takes")
        victim = self._victims.pop(0)
        live = cast(DraftingRequest, victim.request)
        live.take_back()
        self._state.preempt(victim, now_s)

    def schedule_again(self, live: DraftingRequest, tokens: int, now_s: float) -> Scheduled:
        """Schedule a request as the plan did that still holds; blocks are there."""
        return self._schedule(live, tokens, now_s)

    def _schedule(self, view: RequestView, tokens: int, now_s: float) -> Scheduled:
        """Take the blocks of a request's next tokens and of the drafter's behind them."""
        state, longest = self._state, self._longest
        live = cast(DraftingRequest, view)
        computed, known = live.base_computed, live.input_tokens + live.base_outputs
        left = live.num_tokens_to_compute
        padded = tokens > left == 1 and live.status is PREFILLING
        if not 0 < tokens <= (1 + self._config.num_speculative_tokens if padded else left):
            raise state.broken(f"computes {tokens} tokens of request {live.request_id}, which has {left} left")
        room = min(computed + tokens + self._lookahead, longest)
        if computed + tokens >= longest and live.status is DECODING:
            raise state.broken(f"computes request {live.request_id} beyond max_model_len = {longest:,}")
        if self.groups is not None:
            self._take_of_groups(live, tokens, now_s)
            self.enter(live, min(computed + tokens, known))
        elif room > live.reserved_tokens:
            self._take_blocks(live, room, now_s)
        if self._cache is not None:
            self.enter(live, min(computed + tokens, known))
        drafts = max(0, tokens + computed - known - live.num_output_placeholders)
        live.num_drafts = 0
        if computed + tokens >= known:
            least = live.base_outputs + 1 + (live.num_output_placeholders > 0)
            self.needs_drafts = self.needs_drafts or least < live.max_tokens
        return Scheduled(live, tokens, drafts, padded=padded)

    def _take_blocks(self, live: DraftingRequest, room: int, now_s: float) -> None:
        """Take the blocks that a request lacks for so many tokens; the next victims leave until they are free."""
        state = self._state
        needed = cdiv(room, state.batch.block_size) - live.num_blocks
        while needed > state.blocks.num_free:
            self._preempt(now_s)
            if live not in state.running:
                raise state.broken(f"preempts request {live.request_id}, which it computes")
        if needed > 0:
            state.blocks.allocate(live.row, needed)
        live.reserved_tokens = room

    def _drop(self, live: RequestView) -> None:
        """Free the blocks that a request no longer needs."""
        if self.groups is not None:
            self.groups.blocks.drop(live.row, self.groups.processed(cast(DraftingRequest, live)))

    def _take_of_groups(self, live: DraftingRequest, tokens: int, now_s: float) -> None:
        """Take the blocks of a request's next tokens in all groups; the next victims leave until they are free."""
        state, groups = self._state, self.groups
        assert groups is not None
        self._drop(live)
        asked = groups.asked(live, live.base_computed, tokens)
        while groups.blocks.needed(asked) > groups.blocks.num_free:
            self._preempt(now_s)
            if live not in state.running:
                raise state.broken(f"preempts request {live.request_id}, which it computes")
        groups.blocks.extend(asked)
        live.reserved_tokens = max(live.reserved_tokens, asked.end)

    def enter(self, live: DraftingRequest, tokens: int) -> None:
        """Enter the full blocks of a request's first `tokens` tokens into the prefix cache, as far as it keeps them.

        A key that looks ahead needs the tokens behind its block. What several MTP modules may compute again stays out.
        """
        if self.groups is not None:
            self.groups.blocks.enter(self._state.requests[live.row], tokens, live.num_tokens - self._ahead)
        elif self._cache is not None:
            kept = min(tokens - self._kept_out, live.num_tokens - self._ahead)
            if kept > 0:
                state = self._state
                self._cache.enter(state.requests[live.row], kept // state.batch.block_size)

    def check_budget(self, budget: float) -> None:
        """Raise PolicyError for a step beyond the budget, which counts the slots of drafts too."""
        tokens = sum(self._inputs())
        if tokens > budget:
            raise self._state.broken(f"computes {tokens:,} tokens; max_num_batched_tokens is {int(budget):,}")

    def _inputs(self) -> Iterator[int]:
        slots = self._config.draft_slots
        return (part.tokens + slots for part in self.scheduled)
