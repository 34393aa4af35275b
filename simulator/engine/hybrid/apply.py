"""Plans applied to a memory of several KV groups, in the order of vLLM's scheduler.

Running requests drop what they no longer need and take their blocks one after the other; victims leave as blocks are
lacking; admissions follow one by one, for each decides what the next one finds.
"""

from collections.abc import Callable

from simulator.engine.cache_apply import AppliedPlan
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.memory.group_tables import Reach
from simulator.memory.grouped import GroupedBlocks
from simulator.plan import Chunk, Preemption, StepPlan, View
from simulator.request import RequestView
from simulator.request_state import DECODING, PREFILLING, RequestState, ScheduledChunk

_ALL_TOKENS = 1 << 40  # reserved for each request, so that the batch counts no blocks
_MOST_OF_TOKEN = 3  # blocks that a token takes in a group at most: its own, a copy, a state that is saved on the way


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

    def enter(self, live: RequestState) -> None:
        """Let others find what a request has computed, as its last token is known."""
        self.blocks.enter(self._state.requests[live.row], live.num_computed_tokens, live.num_tokens)

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
