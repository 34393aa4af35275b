"""TensorRT-LLM: in-flight batching under one of three capacity policies.

The rules are those of `GuaranteedNoEvictScheduler`, `MaxUtilizationScheduler` and `StaticBatchScheduler` in
cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp and of `MicroBatchScheduler` in microBatchScheduler.cpp beside it
(TensorRT-LLM 1.0), for requests of one beam and chunks by `FIRST_COME_FIRST_SERVED`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Annotated, Literal

from annotated_types import doc

from simulator.parameters import check_parameters
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import EnableChunkedPrefill, MaxNumBatchedTokens, MaxNumSeqs, OrderName
from simulator.policies.parts.reservations import most_tokens, refuse_reservation
from simulator.policies.parts.system import System
from simulator.request import RequestView

CapacityPolicy = Annotated[
    Literal["guaranteed_no_evict", "max_utilization", "static_batch"],
    doc("the memory that a request must find to enter"),
]


@dataclass(frozen=True, slots=True)
class TensorrtLlm:
    """Decodes first, then prompts in the same step, in the queue's order; `capacity_policy` bounds the admissions.

    guaranteed_no_evict: a request enters that finds blocks for prompt + `max_tokens`; these are granted, so that no
    request is ever preempted.
    max_utilization: it enters if it finds blocks for its prompt. Blocks are taken on demand; when they run out the
    latest is paused, which means that it loses its KV, goes to the head of the queue and is recomputed later.
    static_batch: as guaranteed_no_evict, but only when the batch is empty. Finished requests leave at once.

    `max_num_seqs` is TensorRT-LLM's `max_batch_size`, `max_num_batched_tokens` its `max_num_tokens`, and
    `enable_chunked_prefill` its chunked context: a prompt that does not fit what a step has left is cut, to a multiple
    of the block size; without it the prompt waits, and one longer than a whole step is refused.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    capacity_policy: CapacityPolicy = "guaranteed_no_evict"
    enable_chunked_prefill: EnableChunkedPrefill = True
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    @property
    def _grants(self) -> bool:
        return self.capacity_policy != "max_utilization"

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        # A paused request computes what it has of its answer again with its prompt.
        longest = request.input_tokens if self._grants else most_tokens(request) - 1
        if longest > self.max_num_batched_tokens and not self.enable_chunked_prefill:
            return (
                f"{request.input_tokens} input and up to {request.max_tokens} output tokens exceed "
                f"max_num_batched_tokens = {self.max_num_batched_tokens}, and enable_chunked_prefill is false"
            )
        return refuse_reservation(request, num_blocks, block_size) if self._grants else None

    def plan(self, view: View) -> StepPlan:
        if not view.prefilling and view.decode_blocks_needed <= view.num_free_blocks:
            if self.capacity_policy == "static_batch" and len(view.running):
                return _UNTIL_CHANGE
            if not view.waiting:
                return _UNTIL_ARRIVAL
        builder = _StepBuilder(view, self)
        builder.pause_latest()
        builder.continue_prompts()
        if not builder.paused:
            builder.admit()
        if builder.paused or builder.chunks:
            return StepPlan(preempt=tuple(builder.paused.values()), prefill=tuple(builder.chunks))
        # No slot for an arrival, or it queues behind a head that waits for a request to finish.
        if len(view.running) >= builder.slots or (view.waiting and self.order == "fcfs"):
            return _UNTIL_CHANGE
        return _UNTIL_ARRIVAL


class _StepBuilder:
    """A step under construction: what is left of blocks and budget, the paused requests, and the prompts computed."""

    def __init__(self, view: View, policy: TensorrtLlm) -> None:
        self.view = view
        self.policy = policy
        self.paused: dict[RequestView, Preemption] = {}
        self.chunks: list[Chunk] = []
        self.slots = min(policy.max_num_seqs, policy.max_num_batched_tokens)  # a decode step computes a token a slot
        self.budget = policy.max_num_batched_tokens - view.num_decoding
        # Prompts begun own the blocks of all of them, though they take these with their chunks.
        promised = [max(0, cdiv(r.num_tokens, view.block_size) - r.num_blocks) for r in view.prefilling]
        self.free = view.num_free_blocks - view.decode_blocks_needed - sum(promised)

    def pause_latest(self) -> None:
        """Pause the latest admitted until the others find blocks for this step."""
        for request in takewhile(lambda _: self.free < 0, reversed(self.view.running)):
            self.paused[request] = Preemption(request)
            self.free += cdiv(request.num_tokens, self.view.block_size)
            self.budget += request.is_decoding

    def continue_prompts(self) -> None:
        """Continue the prompts begun, in order of admission."""
        for request in self.view.prefilling:
            tokens = self._cut(request.num_tokens_to_compute)
            if tokens == 0 or request in self.paused:
                break
            self.chunks.append(Chunk(request, tokens))
            self.budget -= tokens

    def admit(self) -> None:
        """Admit heads of the queue while slots, blocks and budget last; a static batch gets all its slots at once."""
        is_static = self.policy.capacity_policy == "static_batch"
        running = len(self.view.running)
        if is_static and running:
            return
        for request in self.view.waiting:
            tokens = self._cut(request.num_tokens_to_compute)
            reserve = most_tokens(request) if self.policy._grants else 0
            self.free -= cdiv(reserve or request.num_tokens, self.view.block_size)
            if running >= self.slots or self.free < 0 or (tokens == 0 and not is_static):
                break
            self.chunks.append(Chunk(request, tokens, reserve))
            self.budget -= tokens
            running += 1

    def _cut(self, tokens: int) -> int:
        """The part of a prompt's tokens that fits the step: all, whole blocks of it, or none."""
        if tokens <= self.budget or not self.policy.enable_chunked_prefill:
            return tokens if tokens <= self.budget else 0
        # A budget below the block size is a unit of its own.
        unit = min(self.view.block_size, self.policy.max_num_batched_tokens)
        return self.budget // unit * unit


_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="TensorRT-LLM in-flight batching",
    batch="every step (`static_batch`: when the batch is empty)",
    prompts="in the same step as the decodes, whole or in chunks",
    grant="prompt + `max_tokens` (`max_utilization`: the prompt)",
    order="fcfs and others",
    victim="none (`max_utilization`: the latest)",
    preemption="never (`max_utilization`: recompute)",
)
