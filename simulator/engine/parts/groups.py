"""Layers that keep different things of a request: all tokens, a window, a chunk, a state.

The memory is `simulator.memory.grouped`, and the policy asks it through `View.groups`. Running requests drop what they
no longer need and take their blocks one after the other; victims leave as blocks are lacking; admissions follow one by
one, for each decides what the next one finds. In the fast engine `GroupPlans` apply the plans, and a run of decode
steps is jumped over only as far as no request of the batch takes or frees a block: the next step in which one does is
planned by itself. In the itemized engine `Groups` are a part, whose memory is `GroupMemory`.
"""

from collections.abc import Callable
from typing import Final, Protocol

from simulator.engine.cache_apply import AppliedPlan
from simulator.engine.itemized import ItemizedReplica, Part
from simulator.engine.itemized_apply import ItemizedMemory
from simulator.engine.itemized_step import ItemizedRequest
from simulator.engine.replica import Replica, ReplicaParts
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.errors import InputError
from simulator.memory.group_tables import Reach
from simulator.memory.grouped import GroupedBlocks, Hit, Trial
from simulator.plan import Chunk, GroupsTrial, Preemption, StateRules, StepPlan, View
from simulator.policy_traits import Traits
from simulator.request import RequestView
from simulator.request_state import DECODING, LEAVING, PREFILLING, WAITING, RequestState, ScheduledChunk
from simulator.speculative import SpeculativeConfig

_ALL_TOKENS: Final = 1 << 40  # reserved for each request, so that the batch counts no blocks
_MOST_OF_TOKEN: Final = 3  # blocks that a token takes in a group at most: its own, a copy, a saved state on the way


class Asking(Protocol):
    """What the memory of a replica is asked for, for a request's next tokens."""

    blocks: GroupedBlocks

    @property
    def most_of_decode(self) -> int:
        """Blocks that a decode takes at most; 0 where that is not known."""

    def processed(self, live: RequestState) -> int:
        """Tokens of a request that have been computed for sure."""

    def asked(self, live: RequestState, computed: int, tokens: int, loaded: int = 0) -> Reach:
        """The next tokens of a request behind those computed, of which some are loaded."""

    def quiet_steps(self, live: RequestState) -> int:
        """Decode steps of a request before one that may take or free blocks; 0: this one may."""

    def quiet_run(self) -> int:
        """Decode steps of all, this one included, before one that may change a table of any."""


class GroupsView:
    """A `simulator.plan.KVGroups`: what a policy may ask of the memory."""

    __slots__ = ("_asking", "_state", "states")

    def __init__(self, state: ReplicaState, asking: Asking) -> None:
        self._state = state
        self._asking = asking
        self.states: StateRules | None = asking.blocks.states

    def _hit(self, request: RequestView) -> tuple[RequestState, Hit]:
        live = self._state.waiting_request(request)
        return live, self._asking.blocks.hit(self._state.requests[live.row], live.num_tokens)

    def hit(self, request: RequestView) -> tuple[int, int]:
        """See `KVGroups.hit`."""
        _, hit = self._hit(request)
        return hit.tokens, hit.junction

    def junction(self, request: RequestView) -> int:
        """See `KVGroups.junction`."""
        return self._asking.blocks.junctions.get(request.row, 0)

    def blocks_needed(self, request: RequestView, num_tokens: int, loaded: int = 0, *, whole: bool = False) -> int:
        """See `KVGroups.blocks_needed`."""
        assert isinstance(request, RequestState)
        blocks = self._asking.blocks
        live, hit, computed = request, None, request.num_computed_tokens
        if request.status is WAITING:
            live, hit = self._hit(request)
            computed = hit.tokens + loaded
        asked = self._asking.asked(live, computed, 0 if whole else num_tokens, loaded)
        if whole:
            asked = asked._replace(end=live.num_tokens)
        return blocks.needed(asked, hit, whole=whole)

    def blocks_lacking(self, request: RequestView) -> int:
        """See `KVGroups.blocks_lacking`."""
        assert isinstance(request, RequestState)
        asked = self._asking.asked(request, request.num_computed_tokens, 0)
        return self._asking.blocks.needed(asked._replace(end=request.num_tokens), whole=True)

    def trial(self) -> GroupsTrial:
        """See `KVGroups.trial`."""
        return RunningTrial(self._asking)

    def quiet_steps(self) -> int:
        """See `KVGroups.quiet_steps`."""
        return self._asking.quiet_run()


class RunningTrial:
    """A `simulator.plan.GroupsTrial`.

    As long as there are blocks for all that the requests could take at most, nobody counts what they take.
    """

    __slots__ = ("_asking", "_spare", "_trial", "_uncounted")

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._trial: Trial | None = None
        self._spare = asking.blocks.num_free
        self._uncounted: list[tuple[RequestState, int]] = []
        if not asking.most_of_decode:
            self._trial = Trial(asking.blocks)

    def take(self, request: RequestView, num_tokens: int) -> bool:
        """See `GroupsTrial.take`."""
        asking = self._asking
        assert isinstance(request, RequestState)
        if request.is_decoding and asking.quiet_steps(request) > 0:
            return True
        if self._trial is None:
            most = asking.most_of_decode
            if num_tokens > 1:  # what it drops may make room for a state that is saved on the way
                most += asking.blocks.needed(asking.asked(request, request.num_computed_tokens, num_tokens))
            if most <= self._spare:
                self._spare -= most
                self._uncounted.append((request, num_tokens))
                return True
        return self._take(self._counted(), request, num_tokens)

    def leave(self, request: RequestView) -> None:
        """See `GroupsTrial.leave`."""
        self._counted().leave(request.row)

    def _counted(self) -> Trial:
        """The exact count, with what was taken so far."""
        if self._trial is None:
            self._trial = Trial(self._asking.blocks)
            for request, num_tokens in self._uncounted:
                self._take(self._trial, request, num_tokens)
        return self._trial

    def _take(self, trial: Trial, request: RequestState, num_tokens: int) -> bool:
        asked = self._asking.asked(request, request.num_computed_tokens, num_tokens)
        return trial.take(asked, self._asking.processed(request))


class GroupPlans:
    """Applies the plans of one replica. `in_flight` has the tokens of each request in a step whose end is to come."""

    def __init__(self, state: ReplicaState, viewer: Viewer, blocks: GroupedBlocks) -> None:
        self._state = state
        self._viewer = viewer
        self.blocks = blocks
        self.in_flight: dict[RequestState, int] = {}
        self.most_of_decode = _MOST_OF_TOKEN * len(blocks.tables)
        self._victims: list[Preemption] = []
        self._in_flight = int(state.traits.async_scheduling)  # tokens of a request that decodes step after step
        self._sampling: dict[RequestState, int] = {}  # the requests of the step whose results come next

    def apply(self, plan: StepPlan, now_s: float) -> AppliedPlan:
        """Apply `plan`, and the further parts that the policy adds to it for the same step."""
        state = self._state
        if plan.resume or any(preemption.swap for preemption in plan.preempt):
            raise state.broken("swaps, which a memory of several KV groups does not allow")
        done = AppliedPlan(plan)
        self.blocks.start_plan()
        given: dict[RequestView, int] = {p.request: p.scheduled_tokens for p in plan.preempt}
        passed = {view for view in plan.paused if view in given}
        done.changes = state.set_paused(tuple([view for view in plan.paused if view not in given]))
        done.changes = done.changes or bool(plan.preempt or plan.prefill)
        self._run_on(plan, done, given, passed, now_s)
        last = plan
        while last.more:
            last = self._next_part(last, done, plan.decode, now_s)
        self.blocks.end_plan()
        if self._in_flight:
            self._sampling, self.in_flight = self.in_flight, {}
            if plan.decode:
                self.in_flight.update(dict.fromkeys(state.decoders(), 1))
            self.in_flight.update({live: tokens for live, tokens, _ in done.prefill})
        done.plan = plan._replace(holds=last.holds, hold_steps=last.hold_steps, requeue=last.requeue)
        return done

    def _run_on(
        self, plan: StepPlan, done: AppliedPlan, given: dict[RequestView, int], passed: set[RequestView], now_s: float
    ) -> None:
        """Take the blocks of the running requests in order; victims leave as blocks are lacking.

        A victim without tokens is its own, and leaves in its turn, unless it was `passed` over.
        """
        state = self._state
        chunks = {chunk.request: chunk for chunk in plan.prefill}
        self._victims = list(plan.preempt)
        if len(chunks) < len(plan.prefill) or not chunks.keys().isdisjoint(given):
            raise state.broken("computes a request twice, or one that it preempts")
        for live in list(state.running):
            if live.status not in (DECODING, PREFILLING):
                continue  # a victim that has left already, or one whose last token is computed
            chunk = chunks.pop(live, None)
            if chunk is not None:
                self._take(live, chunk.num_tokens, now_s)
                done.prefill.append((live, chunk.num_tokens, 0))
            elif live in given:
                if given[live]:
                    self._take(live, given[live], now_s)
                elif live not in passed:
                    self.blocks.drop(live.row, self.processed(live))
                    while live.status in (DECODING, PREFILLING):
                        self._preempt(now_s)
            elif plan.decode and live.status is DECODING and not live.paused:
                self._take(live, 1, now_s)
        while self._victims:
            self._preempt(now_s)
        for chunk in chunks.values():
            done.prefill.append(self._admit(chunk, now_s))

    def _next_part(self, before: StepPlan, done: AppliedPlan, decode: bool, now_s: float) -> StepPlan:
        """Ask for the next part and apply it."""
        state, viewer = self._state, self._viewer
        viewer.view.note = before.note
        tokens = sum([chunk[1] for chunk in done.prefill]) + (state.batch.size if decode else 0)
        viewer.look_again(tokens, (), decodes=False)
        ask: Callable[[View], object] = state.policy.plan
        part = ask(viewer.view)
        if not isinstance(part, StepPlan) or part.preempt or part.resume or part.paused:
            raise state.broken(f"continues with {part!r}; later parts may only admit requests")
        if part.more and not part.prefill:
            raise state.broken("sets more=True but admits nothing")
        for chunk in part.prefill:
            done.prefill.append(self._admit(chunk, now_s))
            done.changes = True
        return part

    def processed(self, live: RequestState) -> int:
        """Tokens of a request that have been computed for sure."""
        return max(0, live.num_computed_tokens - self.in_flight.get(live, 0))

    def asked(self, live: RequestState, computed: int, tokens: int, loaded: int = 0) -> Reach:
        """See `Asking.asked`."""
        prefill_end = max(live.input_tokens, live.num_tokens - 1)
        return self.blocks.asked(live.row, computed, computed + tokens, prefill_end, loaded)

    def quiet_steps(self, live: RequestState) -> int:
        """Decode steps of a request before one that may take or free blocks, this one too if it has none of that."""
        if self.in_flight.get(live, 0) != self._in_flight:
            return 0  # a longer chunk before this step, or none, changes what is computed for sure
        return self.blocks.quiet.get(live.row, 0) - live.num_computed_tokens

    def _take(self, live: RequestState, tokens: int, now_s: float) -> None:
        state, blocks = self._state, self.blocks
        if live.status is DECODING and self.quiet_steps(live) > 0:
            return
        if not 0 < tokens <= live.num_tokens_to_compute:
            left = live.num_tokens_to_compute
            raise state.broken(f"computes {tokens} tokens of request {live.request_id}, which has {left} left")
        blocks.drop(live.row, self.processed(live))
        asked = self.asked(live, live.num_computed_tokens, tokens)
        if tokens != 1 or blocks.num_free < self.most_of_decode:  # else there are enough, without counting
            while blocks.needed(asked) > blocks.num_free:
                self._preempt(now_s)
                if live not in state.running:
                    raise state.broken(f"preempts request {live.request_id}, which it computes")
        known = live.num_tokens - (state.unknown(live) if live.status is DECODING else 0)
        blocks.take(state.requests[live.row], asked, known)
        if live.status is DECODING and self.in_flight.get(live, 0) == self._in_flight:
            computed = live.num_computed_tokens
            self.blocks.quiet[live.row] = computed + blocks.quiet_steps(computed, self._in_flight)

    def quiet_run(self) -> int:
        """Decode steps of all, this one included, before one that may change a table of any."""
        decoders = self._state.decoders()
        if any(self.in_flight.get(live, 0) != self._in_flight for live in decoders):
            return 1  # the next step sees what a longer chunk before this one has left behind
        left = [self.quiet_steps(live) for live in decoders]
        blocks, in_flight = self.blocks, self._in_flight
        return min(
            [
                steps if steps > 0 else blocks.quiet_steps(live.num_computed_tokens, in_flight)
                for steps, live in zip(left, decoders, strict=True)
            ]
        )

    def before_results(self) -> None:
        """A step has ended: let others find what the requests of the one before have computed, as that is known."""
        for live in self._sampling:
            if live.status in (DECODING, LEAVING):
                self.blocks.enter(self._state.requests[live.row], live.num_computed_tokens, live.num_tokens)
        self._sampling = {}

    def _preempt(self, now_s: float) -> None:
        if not self._victims:
            raise self._state.broken("lacks the blocks that it takes")
        self._state.preempt(self._victims.pop(0), now_s)

    def _admit(self, chunk: Chunk, now_s: float) -> ScheduledChunk:
        state, blocks = self._state, self.blocks
        if chunk.reserve_tokens or chunk.padding_tokens:
            raise state.broken("reserves or pads, which a memory of several KV groups does not allow")
        live = state.waiting_request(chunk.request)
        request = state.requests[live.row]
        hit = blocks.hit(request, live.num_tokens)
        if not 0 < chunk.num_tokens <= live.num_tokens - hit.tokens:
            raise state.broken(f"computes {chunk.num_tokens} tokens of request {live.request_id}")
        asked = self.asked(live, hit.tokens, chunk.num_tokens)
        if blocks.needed(asked, hit) > blocks.num_free:
            raise state.broken(f"admits request {live.request_id} without the blocks for it")
        state.place(chunk, now_s)
        live.found(hit.tokens)
        live.reserved_tokens = _ALL_TOKENS
        blocks.admit(asked, hit)
        blocks.take(request, asked, live.num_tokens, admitted=True)
        return live, chunk.num_tokens, 0


def plan_with_groups(replica: Replica, blocks: GroupedBlocks) -> None:
    """Let a replica of the fast engine plan with these blocks. InputError for a policy that does not."""
    state, policy = replica.state, type(replica.state.policy)
    if not Traits.of(policy).asks_groups:
        what = f"the policy {policy.__name__} does not plan with layers that keep different things"
        raise InputError(what, hint="engine.policy: vllm, or engine.disable_hybrid_kv_cache_manager: true")
    if state.traits.prefill_schedule_interval > 1:
        what = "layers that keep different things do not go with prefill_schedule_interval yet"
        raise InputError(what, hint="engine.disable_hybrid_kv_cache_manager: true")
    plans, refuses = GroupPlans(state, replica.viewer, blocks), state.refuses
    replica.apply_with(plans.apply, plans.before_results)
    replica.view.groups = GroupsView(state, plans)
    replica.completion.forget = blocks.end

    def refusal(request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request could never be served with so many blocks."""
        reason = blocks.refusal(request.input_tokens + state.requests[request.row].output_tokens - 1)
        return refuses(request, num_blocks, block_size) if reason is None and refuses is not None else reason

    state.refuses = refusal


class GroupMemory(ItemizedMemory):
    """Blocks of several KV groups, for the itemized engine; an `Asking` of its view."""

    __slots__ = ("_hit", "blocks")
    most_of_decode = 0  # it depends on the drafts

    def __init__(self, state: ReplicaState, config: SpeculativeConfig, longest: int, blocks: GroupedBlocks) -> None:
        super().__init__(state, config, longest)
        self.blocks = blocks
        self.enters = True
        self._hit: Hit | None = None

    def processed(self, live: RequestState) -> int:
        """See `Asking.processed`."""
        assert isinstance(live, ItemizedRequest)
        return max(0, live.base_computed - live.in_flight_tokens)

    def asked(self, live: RequestState, computed: int, tokens: int, loaded: int = 0) -> Reach:
        """See `Asking.asked`."""
        end = min(computed + tokens + (self._lookahead if tokens else 0), self._longest)
        return self.blocks.asked(live.row, computed, end, max(live.input_tokens, live.num_tokens - 1), loaded)

    def quiet_steps(self, live: RequestState) -> int:
        """See `Asking.quiet_steps`."""
        return 0

    def quiet_run(self) -> int:
        """See `Asking.quiet_run`."""
        return 1

    def refusal(self, num_tokens: int) -> str | None:
        return self.blocks.refusal(num_tokens)

    def placed(self, live: ItemizedRequest, num_tokens: int) -> None:
        live.found(self.look(live))
        self.admit(live, num_tokens)

    def look(self, live: ItemizedRequest) -> int:
        self._hit = self.blocks.hit(self._state.requests[live.row], live.num_tokens)
        return self._hit.tokens

    def admit(self, live: ItemizedRequest, num_tokens: int, loaded: int = 0) -> None:
        assert self._hit is not None
        self.blocks.admit(self.asked(live, live.base_computed, num_tokens, loaded), self._hit)

    def take(self, live: ItemizedRequest, num_tokens: int) -> bool:
        blocks = self.blocks
        self.drop(live)
        asked = self.asked(live, live.base_computed, num_tokens)
        if blocks.needed(asked) > blocks.num_free:
            return False
        blocks.extend(asked)
        live.reserved_tokens = max(live.reserved_tokens, asked.end)
        return True

    def drop(self, live: ItemizedRequest) -> None:
        self.blocks.drop(live.row, self.processed(live))

    def ends(self, live: ItemizedRequest) -> None:
        self.drop(live)

    def enter(self, live: ItemizedRequest, num_tokens: int) -> None:
        self.blocks.enter(self._state.requests[live.row], num_tokens, live.num_tokens - self._ahead)


class Groups(Part):
    """KV groups as a part of the itemized engine."""

    def checks(self, parts: ReplicaParts) -> None:
        assert isinstance(parts.blocks, GroupedBlocks)
        self._blocks = parts.blocks

    def joins(self, replica: ItemizedReplica) -> None:
        drafter, blocks = replica.drafter, self._blocks
        if blocks.states is not None:
            what = "layers with a state do not go with drafts yet"
            raise InputError(what, hint="engine.disable_hybrid_kv_cache_manager: true")
        memory = GroupMemory(replica.state, drafter.config, drafter.longest, blocks)
        replica.plans.memory = memory
        replica.view.groups = GroupsView(replica.state, memory)
        replica.completion.forget = blocks.end
