"""Continuous batching in its plain form: whole prompts first, in batches of their own, then all requests decode."""

from dataclasses import dataclass

from simulator.division import cdiv
from simulator.parameters import check_parameters
from simulator.plan import Chunk, Preemption, StepPlan, Traits, View
from simulator.policies.parts.plans import UNTIL_ARRIVAL, UNTIL_CHANGE, chunk_of, step_plan
from simulator.policies.parts.preemption import MaxNumBatchedTokens, MaxNumSeqs, OrderName, System, first_to_leave


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


# The plan of a step.


def step(view: View, slots: int, max_tokens: int, order: str) -> StepPlan:
    """The plan of a step: prompts of at most `max_tokens` tokens if any can be computed, else decodes."""
    prefilling, waiting = view.prefilling, view.waiting
    if prefilling or waiting:
        chunks = _prompts(view, slots, max_tokens)
        if chunks:
            return step_plan(prefill=tuple(chunks), decode=False)
    if view.decode_blocks_needed > view.num_free_blocks:
        return StepPlan(preempt=_make_room(view, order))
    if len(view.running) >= slots or (waiting and order == "fcfs"):
        return UNTIL_CHANGE  # no slot for an arrival, or it queues behind a head that is stuck
    return UNTIL_ARRIVAL


def _prompts(view: View, slots: int, max_tokens: int) -> list[Chunk]:
    """Prompts for one prefill step: those begun, then the heads of the queue that fit."""
    size = view.block_size
    budget = max_tokens
    free = view.num_free_blocks
    chunks: list[Chunk] = []
    for request in view.prefilling:
        tokens = min(request.num_tokens_to_compute, budget)
        # Room for the whole of it, though it takes only this chunk's now.
        free -= cdiv(request.num_tokens, size) - request.num_blocks
        budget -= tokens
        if tokens:
            chunks.append(chunk_of(request, tokens))
    running = len(view.running)
    for request in view.waiting:
        tokens = request.num_tokens
        if running >= slots or tokens > budget < max_tokens:
            break
        # A prompt that left no room for its first decode step would be preempted at once.
        needed = cdiv(tokens + 1 if running else tokens, size)
        if needed > free or budget == 0:
            break
        tokens = min(tokens, budget)
        chunks.append(chunk_of(request, tokens))
        free -= needed
        budget -= tokens
        running += 1
    return chunks


def _make_room(view: View, order: str) -> tuple[Preemption, ...]:
    """Preempt victims, to be recomputed, until the remaining decodes fit."""
    size = view.block_size
    needed = view.decode_blocks_needed
    free = view.num_free_blocks
    victims: list[Preemption] = []
    for request in first_to_leave(view.running, order):
        if needed <= free:
            break
        victims.append(Preemption(request))
        free += request.num_blocks
        needed -= request.num_computed_tokens % size == 0
    return tuple(victims)
