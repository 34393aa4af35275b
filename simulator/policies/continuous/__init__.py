"""Continuous batching in its plain form: whole prompts first, in batches of their own, then all requests decode."""

from dataclasses import dataclass

from simulator.parameters import check_parameters
from simulator.plan import StepPlan, Traits, View
from simulator.policies.continuous.step import step
from simulator.policies.parts.parameters import MaxNumBatchedTokens, MaxNumSeqs, OrderName
from simulator.policies.parts.system import System


@dataclass(frozen=True, slots=True)
class Continuous:
    """Iteration-level scheduling, first come first served, paged KV on demand, recompute when memory runs out.

    A prompt longer than `max_num_batched_tokens` takes several prefill steps in a row, without decodes between them.
    When memory runs out, the latest admitted request is preempted; with `order: priority`, the least important.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order, whole_prompts=True, pauses_decodes=True)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        return step(view, slots, self.max_num_batched_tokens, self.order)


SYSTEM = System(
    name="continuous batching in its plain form",
    batch="every step",
    prompts="whole, in prefill steps of their own, before decodes",
    grant="blocks of the prompt and one token",
    order="fcfs, or any timeless or timed order",
    victim="the latest admitted",
    preemption="recompute",
)
STYLE = ("#0072b2", (0, (5.0, 1.8)))
