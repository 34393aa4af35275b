"""The results of SGLang's verify steps: the accepted run of each request, in the order of the batch.

`SchedulerBatchResultProcessor` in python/sglang/srt/managers/scheduler_components/batch_result_processor.py (SGLang
0.5.23). Tokens are committed with the results, so that with overlap a plan knows those of the step before the running
one. The result of a request that has ended, or was retracted meanwhile, is passed over.
"""

from collections import Counter

from simulator.engine.in_flight import InFlight
from simulator.engine.speculative.results import VerifyResults
from simulator.engine.speculative.step import Scheduled, VerifyStep
from simulator.plan import StepPlan
from simulator.request_state import DECODING, LEAVING, RequestState


class AheadResults(VerifyResults):
    """Takes in the results of steps, in order."""

    __slots__ = ()

    def behind(self, step: InFlight | None, plan: StepPlan, now_s: float) -> InFlight | None:
        """Let a step begin at the end of the running step. Without a step, wait for results if any are to come."""
        end_s = self.end_s
        if step is None:
            if self._in_flight is None:
                return None
            step = VerifyStep(self._state, plan, max(now_s, end_s), (), len(self._state.waiting))
            step.is_wait = True
            step.ends_s = [step.start_s]
        elif end_s > now_s:
            step.start_s = end_s
        return step

    def forget(self, live: RequestState) -> None:
        """`live` was retracted or aborted: its result, if one is to come, will be dropped."""
        step = self._in_flight
        if step is None:
            return
        for part in step.scheduled:
            if part.live is live:
                part.live.in_flight_tokens = 0
        step.scheduled = [part for part in step.scheduled if part.live is not live]

    def next_is(self, step: VerifyStep) -> bool:
        """The next step is in flight, or a wait for results; take in those of the one before.

        A request whose next token is its last has nothing left to plan (`_reqs_finishing_inflight`, scheduler.py:4438),
        however many tokens the step delivers.
        """
        sampled = super().next_is(step)
        state = self._state
        for part in step.scheduled:
            live = part.live
            if live.status is not DECODING or live.row not in state.requests or not part.samples:
                continue
            if live.base_outputs + 1 >= live.max_tokens:
                state.batch.leave(live)
                live.status = LEAVING
                state.num_leaving += 1
        return sampled

    def take_in(self, step: VerifyStep) -> bool:
        """The results of a step are there; returns whether there was a token among them."""
        state, end_s = self._state, step.ends_s[-1]
        gaps: Counter[float] = Counter()
        emitted: dict[str, int] = {}
        finished: list[str] = []
        for part in step.scheduled:
            live = part.live
            if not part.samples or live.row not in state.requests:
                continue
            tokens, is_last = self._commit(part)
            emitted[live.request_id] = tokens
            self._tell(part, tokens, end_s, gaps)
            if is_last:
                finished.append(live.request_id)
                self._completion.finish_late(live, end_s)
            elif part.is_prompt and state.tree is not None:
                state.settle(live)
        if state.streams:
            for gap_s, count in gaps.items():
                state.records.late_gaps.add((gap_s, count, end_s))
        if step.record is not None:
            step.record |= {"finished": finished, "emitted": emitted}
            step.record["num_free_blocks_end"] = state.blocks.num_free
        return bool(emitted)

    def _commit(self, part: Scheduled) -> tuple[int, bool]:
        """Count the accepted run of a request; returns the tokens delivered, and whether the answer is whole.

        All of the run is committed, and what lies behind the answer's end belongs to no one (`owned_kv_len`). A token
        of a mixed step is not committed if it is the last (:373).
        """
        live = part.live
        left = self._state.tokens_left(live)
        returned = 1 + part.accepted
        tokens = min(returned, left)
        live.base_outputs += tokens
        if not part.is_prompt:
            live.in_flight_tokens -= returned
            if tokens < left:
                live.base_computed += returned
            elif part.drafts:
                live.base_computed = min(live.base_computed + returned, live.num_tokens)
        if part.drafts:
            live.verified(part.drafts, part.accepted)
        return tokens, tokens == left
