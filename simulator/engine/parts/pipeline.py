"""A pipeline as a part of the itemized engine: the layers are spread over stages, and several steps are in flight.

As in vLLM 0.33 (`AsyncScheduler`, and `EngineCore.step_with_batch_queue`, vllm/v1/engine/core.py:708-820):

- A request whose sampled token has not come back asks for no token. The next chunk of a prompt does not wait.
- With asynchronous scheduling a token is counted before it comes back, and a request decodes again only as many plans
  later as there are stages, empty plans counted.
- Such a step is on its way when its token may still be computed: the first stage waits for it.
- What was in flight of a preempted request is delivered; until then the queue passes it over.
- A batch takes its place in the queue even if it is empty.
"""

from simulator.engine.itemized import ItemizedReplica, Part
from simulator.engine.itemized_step import ItemizedStep
from simulator.engine.replica import ReplicaParts
from simulator.errors import InputError
from simulator.policy_traits import Traits
from simulator.timing.pipeline_cost import PipelineCost


class Pipeline(Part):
    """The stages of a replica. InputError for a policy that does not plan for them.

    `depth` batches are in flight at most: one a stage, and one more with asynchronous scheduling.
    """

    def __init__(self, cost: PipelineCost) -> None:
        self._cost = cost
        self._stages = len(cost.stages)
        self._free_s = [0.0] * self._stages  # when each stage has done what it was given
        self._ran: list[tuple[float, float]] = []  # when each ran the last step

    def checks(self, parts: ReplicaParts) -> None:
        policy = type(parts.policy)
        if not Traits.of(policy).fills_pipelines:
            what = f"the policy {policy.__name__} does not plan for the stages of a pipeline"
            raise InputError(what, hint="engine.policy: vllm, or hardware.pipeline_parallel: 1")
        if parts.executor.traits.wants_block_ids:
            raise InputError("a device runs no pipeline here", hint="hardware.pipeline_parallel: 1")

    def joins(self, replica: ItemizedReplica) -> None:
        self._replica = replica
        self._clock = replica.state.decode_clock
        self._waits = replica.overlaps and self._cost.waits_for_tokens
        replica.stages = self
        replica.queues_steps, replica.idle_s = True, self._cost.idle_s
        replica.depth = self._stages + replica.overlaps
        replica.logs_drafts = False

    def has_work(self) -> bool:
        """The workers are to hear that some requests have ended."""
        return self._replica.any_ended and self._cost.idle_s > 0

    def before_plan(self, now_s: float) -> None:
        self._clock.plans += 1

    def run(self, step: ItemizedStep, ready_s: float) -> float:
        """Work out when the step runs on each stage, each of which takes one after the other."""
        free_s, shape, self._ran = self._free_s, step.shape, []
        if not shape.tokens:
            step.start_s = free_s[-1] = max(ready_s, free_s[-1])
            step.ends_s = [step.start_s]
            return free_s[-1]
        transfer_s, now_s = self._cost.transfer_s(shape), ready_s
        if self._waits:
            ready_s = max(now_s, max([part.live.token_s for part in step.scheduled]))
        for stage, stage_s in enumerate(self._cost.stages_s(shape)):
            start_s = max(ready_s, free_s[stage])
            free_s[stage] = end_s = start_s + stage_s
            ready_s = end_s + transfer_s
            self._ran.append((start_s, end_s))
        step.start_s = self._ran[0][0]
        step.ends_s = [free_s[-1]]
        return free_s[-1]

    def queued(self, step: ItemizedStep) -> None:
        if not self._replica.overlaps:
            return
        for part in step.scheduled:
            if part.samples:
                part.live.decode_from = self._clock.plans + self._stages
                if self._waits:
                    part.live.token_s = self._free_s[-1] + self._cost.hop_s

    def logged(self, step: ItemizedStep) -> None:
        assert step.record is not None
        step.record |= {"t_schedule_s": self._replica.view.now_s, "stages_s": self._ran}
