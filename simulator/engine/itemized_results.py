"""The results of an itemized replica's steps: rejected tokens are rolled back, the others delivered one by one.

As in vLLM's `Scheduler.update_from_output` (0.33, scheduler.py:2240-2480) and `AsyncScheduler`. With asynchronous
scheduling a step's results arrive when the next has begun and the one after it is planned: `late` keeps it until then.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from simulator.engine.aborts import Aborts
from simulator.engine.completion import Completion
from simulator.engine.in_flight import InFlight
from simulator.engine.itemized_apply import ItemizedPlans
from simulator.engine.itemized_step import ItemizedRequest, ItemizedStep, Scheduled
from simulator.engine.late_results import LateResults
from simulator.engine.state import ReplicaState
from simulator.front_end import FirstTokens
from simulator.plan import StepPlan
from simulator.request_state import LOADING, WAITING, RequestState


class ItemizedAborts(Aborts):
    """Aborts where no result is counted before it is there: none has to be taken back.

    A connector's `leaves` is told of each request that goes, and returns whether it has taken it out.
    """

    __slots__ = ("leaves",)

    def __init__(self, state: ReplicaState, completion: Completion, late: LateResults | None) -> None:
        super().__init__(state, completion, late)
        self.leaves: Callable[[ItemizedRequest], bool] | None = None

    def _count(self, live: RequestState) -> None:
        if live.status is not LOADING:
            super()._count(live)

    def _dropped(self, live: RequestState, from_s: float, ends_s: Iterable[float]) -> tuple[int, float]:
        return 0, live.last_token_s

    def _take_out(self, live: RequestState, now_s: float) -> bool:
        if self.leaves is not None and isinstance(live, ItemizedRequest) and self.leaves(live):
            return False
        return super()._take_out(live, now_s)


class ItemizedResults(LateResults):
    """Takes in the results of steps, in order. `first_tokens` is told of each request's first."""

    __slots__ = ("_in_flight", "_plans", "drops_stale", "first_tokens")

    def __init__(self, state: ReplicaState, completion: Completion, plans: ItemizedPlans) -> None:
        super().__init__(state, completion)
        self._plans = plans
        self._in_flight: ItemizedStep | None = None
        self.drops_stale = False  # what was in flight when its request was preempted is thrown away
        self.first_tokens: FirstTokens | None = None

    def behind(self, step: InFlight | None, plan: StepPlan, now_s: float) -> InFlight | None:
        """Let a step begin at the end of the running step. Without a step, wait for results if any are to come."""
        state, end_s = self._state, self.end_s
        if step is None:
            if self._in_flight is None:
                return None
            if not (state.running or state.waiting):  # what is in flight is of requests that have ended
                self.take_in_all()
                return None
            step = ItemizedStep(state, plan, max(now_s, end_s), (), len(state.waiting))
            step.is_wait = True
            step.ends_s = [step.start_s]
        elif end_s > now_s:
            step.start_s = end_s
        return step

    def forget(self, live: RequestState) -> None:
        """`live` has been aborted: its results, if any are to come, will be dropped."""

    def next_is(self, step: ItemizedStep) -> bool:
        """The next step is in flight, or a wait for results; take in those of the one before."""
        sampled = self.take_in_all()
        if not step.is_wait:
            self._in_flight, self.end_s = step, step.ends_s[-1]
        return sampled

    @property
    def in_flight(self) -> ItemizedStep | None:
        """The step whose results are still to come."""
        return self._in_flight

    def take_in_all(self) -> bool:
        """Take in the results in flight; returns whether there was a token among them."""
        step, self._in_flight = self._in_flight, None
        return step is not None and self.take_in(step)

    def take_in(self, step: ItemizedStep) -> bool:
        """The results of a step are there; returns whether there was a token among them."""
        state, end_s = self._state, step.ends_s[-1]
        done: list[RequestState] = []
        gaps: Counter[float] = Counter()
        emitted: dict[str, int] = {}
        for part in step.scheduled:
            live = part.live
            live.in_flight_tokens -= part.tokens
            stale = live.stale_tokens > 0
            if stale:
                live.stale_tokens -= part.tokens
            if part.samples and live.row in state.requests and not (stale and self.drops_stale):
                tokens, is_last = self._deliver(part, stale=stale)
                emitted[live.request_id] = tokens
                self._tell(part, tokens, end_s, gaps)
                if is_last:
                    done.append(live)
        if state.streams:
            for gap_s, count in gaps.items():
                state.records.late_gaps.add((gap_s, count, end_s))
        self._finish(done, end_s)
        if step.record is not None:
            step.record |= {"finished": [live.request_id for live in done], "emitted": emitted}
            step.record["num_free_blocks_end"] = state.blocks.num_free
        return bool(emitted)

    def _deliver(self, part: Scheduled, *, stale: bool) -> tuple[int, bool]:
        """Roll back what was rejected and deliver the rest; returns its tokens, and whether the answer is whole.

        A stale result was scheduled before a preemption: it is delivered, and changes no other count.
        """
        live, state = part.live, self._state
        returned = 1 + part.accepted
        rejected = part.drafts - part.accepted
        if part.drafts:
            live.verified(part.drafts, part.accepted)
        left = state.tokens_left(live)
        tokens = min(returned, left)
        live.base_outputs += tokens
        if not stale:
            live.base_computed -= rejected + returned - tokens
            if live.num_output_placeholders:
                live.num_output_placeholders -= rejected + returned
            self._plans.memory.enter(live, live.base_computed - live.in_flight_tokens)
            if not state.traits.async_scheduling:  # there they are set as the step is launched
                live.num_drafts = part.proposed
        return tokens, tokens == left

    def _tell(self, part: Scheduled, tokens: int, end_s: float, gaps: Counter[float]) -> None:
        """Note when the client has these tokens: all of a step come at its end."""
        live, state = part.live, self._state
        if live.first_token_s != live.first_token_s:
            live.first_token_s = end_s
            if self.first_tokens is not None:
                self.first_tokens.sampled(live.row, len(state.running), end_s, streams=state.streams)
        else:
            gaps[end_s - live.last_token_s] += 1
        if tokens > 1:
            gaps[0.0] += tokens - 1
        live.last_token_s = end_s

    def _finish(self, done: list[RequestState], end_s: float) -> None:
        """Let the requests leave whose answer is whole: one that was preempted meanwhile, from the queue."""
        for live in done:
            if live.status is WAITING:
                self._completion.finish_late(live, end_s)
        running = [live for live in done if live.status is not WAITING and live in self._state.running]
        if running:
            self._completion.finish_all(running, end_s)
