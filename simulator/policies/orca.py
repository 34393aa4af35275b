"""Orca (G.-I. Yu et al., OSDI 2022): iteration-level scheduling, selective batching, KV reserved at admission.

The rules are those of Algorithm 1 of the paper. It bounds a batch by its requests (`max_bs`) and by the KV slots that
they may come to need (`n_slots`); the bound on a step's tokens is ours, so that all policies can be given the same.
"""

from dataclasses import dataclass

from simulator.division import cdiv
from simulator.parameters import check_parameters
from simulator.plan import Chunk, StepPlan, Traits, View
from simulator.policies.parts.free_blocks import most_tokens, refuse_reservation
from simulator.policies.parts.plans import decodes_on
from simulator.policies.parts.preemption import MaxNumBatchedTokens, MaxNumSeqs, OrderName, System
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Orca:
    """Whole prompts in one step with the decodes, KV reserved for prompt + `max_tokens`: no preemption.

    In the queue's order, first come first served as in the paper: the head enters when a slot of the batch is free,
    and memory for its prompt and all of its `max_tokens`; no request passes it. It keeps what it reserved to its end.

    `continuous` and `vllm_v0` compute prompts in steps of their own and take memory on demand. `sarathi`, `fastgen`
    and `chunked_prefill` cut prompts, so that these never hold up the decodes. Here a prompt is computed whole, and the
    next token of every other request waits for it.

    A step takes the whole prompts that fit into `max_num_batched_tokens` beside all decodes. A head that does not fit
    pauses the latest decodes for this step. One longer than the budget takes several, beside the decodes that fit.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order, whole_prompts=True, reserves=True)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        return refuse_reservation(request, num_blocks, block_size)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        chunks = self._prompts(view, slots) if view.prefilling or view.waiting else []
        if not chunks:
            return decodes_on(view, slots, self.order)
        left = self.max_num_batched_tokens - sum([chunk.num_tokens for chunk in chunks])
        if left >= view.num_decoding:
            return StepPlan(prefill=tuple(chunks))
        if left == 0:
            return StepPlan(prefill=tuple(chunks), decode=False)
        decoding = [request for request in view.running if request.is_decoding]
        return StepPlan(prefill=tuple(chunks), paused=tuple(decoding[left:]))

    def _prompts(self, view: View, slots: int) -> list[Chunk]:
        """The prompt begun, then the heads of the queue that find slot, memory and budget."""
        budget = self.max_num_batched_tokens
        beside = budget - view.num_decoding  # tokens that displace no decode
        free = view.num_free_blocks
        running = len(view.running)
        chunks = []
        for request in view.prefilling:  # one at most: it is longer than the budget
            tokens = min(request.num_tokens_to_compute, budget)
            chunks.append(Chunk(request, tokens))
            beside -= tokens
        for request in view.waiting:
            reserve = most_tokens(request)
            free -= cdiv(reserve, view.block_size)
            if running >= slots or free < 0 or (chunks and request.num_tokens > beside):
                break
            tokens = min(request.num_tokens, budget)
            chunks.append(Chunk(request, tokens, reserve))
            beside -= tokens
            running += 1
        return chunks


SYSTEM = System(
    name="Orca (OSDI 2022)",
    batch="every step",
    prompts="whole, mixed with the decodes",
    grant="prompt + `max_tokens`, reserved",
    order="fcfs and others",
    victim="none",
    preemption="never",
)
