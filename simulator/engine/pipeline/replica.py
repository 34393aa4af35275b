"""A replica whose layers are spread over the stages of a pipeline: several of its steps are in flight at once.

Its steps are those of a replica with drafts, of which there are none: counts of each request's own, tokens that are
computed before they are known, results that arrive late (`simulator.engine.speculative`). As in vLLM 0.33
(`AsyncScheduler` and `EngineCore.step_with_batch_queue`):

- A request whose sampled token has not come back asks for no token. The next chunk of a prompt does not wait.
- With asynchronous scheduling a token is counted before it comes back, and a request decodes again only as many plans
  later as there are stages, empty plans counted.
- Such a step is on its way when its token may still be computed: the first stage waits for it.
- What was in flight of a preempted request is delivered; until then the queue passes it over.
"""

import sys
from dataclasses import replace
from typing import Final, cast

from simulator.engine.in_flight import InFlight
from simulator.engine.pipeline.request import PipelinedRequest
from simulator.engine.replica_parts import ReplicaParts
from simulator.engine.speculative.log import log_planned
from simulator.engine.speculative.replica import SpeculativeReplica
from simulator.engine.speculative.step import Scheduled, VerifyStep
from simulator.errors import InputError
from simulator.plan import StepPlan
from simulator.policy_traits import Traits
from simulator.request import Request, RequestView
from simulator.request_state import RequestState
from simulator.speculative.config import SpeculativeConfig
from simulator.speculative.speculation import Speculation
from simulator.timing.pipeline_cost import PipelineCost


class _NoDrafts:
    """Implements Acceptance where nothing is drafted."""

    def enter(self, request: Request) -> None:
        pass

    def accepted(self, row: int, verify_step: int) -> int:
        return 0


_NO_DRAFTS: Final = Speculation(SpeculativeConfig("ngram", 0), _NoDrafts(), sys.maxsize)
_NO_PLAN: Final = StepPlan()


class PipelinedReplica(SpeculativeReplica):
    """A `Replica` of several stages. InputError for a policy that does not plan for them.

    `depth` batches are in flight at most: one a stage, and one more with asynchronous scheduling.
    """

    def __init__(self, cost: PipelineCost, parts: ReplicaParts) -> None:
        policy = type(parts.policy)
        if not Traits.of(policy).fills_pipelines:
            what = f"the policy {policy.__name__} does not plan for the stages of a pipeline"
            raise InputError(what, hint="engine.policy: vllm, or hardware.pipeline_parallel: 1")
        if parts.executor.traits.wants_block_ids:
            raise InputError("a device runs no pipeline here", hint="hardware.pipeline_parallel: 1")
        super().__init__(_NO_DRAFTS, replace(parts, fast_forward=False))
        self._cost = cost
        self._stages = len(cost.stages)
        self._free_s = [0.0] * self._stages  # when each stage has done what it was given
        self._tells_ends = False  # requests have ended since the last plan, of which the workers are to hear
        self._waits = self._overlaps and cost.waits_for_tokens
        self.depth = self._stages + self._overlaps
        self.idle_s = cost.idle_s

    def new_request(self, request: Request) -> RequestState:
        """See `Replica.new_request`."""
        return PipelinedRequest(request, self.state.decode_clock)

    def _refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        return None if self._refuses is None else self._refuses(request, num_blocks, block_size)

    def has_work(self, seen_s: float) -> bool:
        """Whether a plan is to be made: there are requests, or the workers are to hear that some have ended.

        The engine has seen the requests that came by `seen_s`.
        """
        state = self.state
        if state.running or (self._tells_ends and self.idle_s > 0):
            return True
        return any(live.arrival_s <= seen_s for live in state.waiting)

    def schedule(self, now_s: float) -> VerifyStep:
        """Plan a batch and give it to the first stage; one without tokens runs no model, and waits for its turn."""
        self.state.decode_clock.plans += 1
        self._tells_ends = False
        step = self.begin_step(now_s)
        if step is None:
            step = VerifyStep(self.state, _NO_PLAN, now_s, (), len(self.state.waiting))
            step.is_wait = True
        assert isinstance(step, VerifyStep)
        stages = self._run(step, now_s)
        if not step.is_wait:
            if self._decisions is not None:
                log_planned(self._decisions, self.state, step, now_s, drafts=False)
                assert step.record is not None
                step.record |= {"t_schedule_s": now_s, "stages_s": stages}
            self._record(step)
        if not step.shape.tokens:
            self.progress.missed()
        return step

    def _launch(self, part: Scheduled, next_drafts: int) -> None:
        super()._launch(part, next_drafts)
        live = part.live
        if part.samples and self._overlaps and isinstance(live, PipelinedRequest):
            live.decode_from = self.state.decode_clock.plans + self._stages

    def _run(self, step: VerifyStep, now_s: float) -> list[tuple[float, float]]:
        """Work out when the step runs on each stage, each of which takes one after the other; starts and ends."""
        free_s, shape = self._free_s, step.shape
        if not shape.tokens:
            step.start_s = free_s[-1] = max(now_s, free_s[-1])
            step.ends_s = [step.start_s]
            return []
        transfer_s = self._cost.transfer_s(shape)
        ready_s, ran = now_s, []
        if self._waits:
            ready_s = max(now_s, max([cast(PipelinedRequest, part.live).token_s for part in step.scheduled]))
        for stage, stage_s in enumerate(self._cost.stages_s(shape)):
            start_s = max(ready_s, free_s[stage])
            free_s[stage] = end_s = start_s + stage_s
            ready_s = end_s + transfer_s
            ran.append((start_s, end_s))
        step.start_s = ran[0][0]
        step.ends_s = [free_s[-1]]
        if self._waits:
            for part in step.scheduled:
                if part.samples:
                    cast(PipelinedRequest, part.live).token_s = free_s[-1] + self._cost.hop_s
        return ran

    def _record(self, step: VerifyStep) -> None:
        """Begin a row of the records, which follow one another: it lasts while its batch is the oldest in flight."""
        start_s = step.start_s
        step.start_s = max(start_s, self._records.end_s)
        super()._record(step)
        step.start_s = start_s

    def end_aborted(self, now_s: float) -> None:
        """End the requests whose clients have given up."""
        if self._gone:
            before = len(self.state.requests)
            self.aborts.end_between(now_s)
            self._note_ends(before)

    def finish_step(self, step: InFlight) -> None:
        """Take in the results of the oldest batch, which has passed its last stage."""
        assert isinstance(step, VerifyStep)
        self.end_aborted(step.ends_s[-1])
        before = len(self.state.requests)
        self._results.first_tokens = self.first_tokens
        sampled = self._results.take_in(step)
        self._note_ends(before)
        if self.changed is not None:
            self.changed(self.index)
        if sampled:
            self.progress.barren_steps = 0

    def _note_ends(self, requests_before: int) -> None:
        if len(self.state.requests) < requests_before:
            self._tells_ends = True
