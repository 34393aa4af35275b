"""TensorRT-LLM: in-flight batching under one of three capacity policies.

The rules are those of `GuaranteedNoEvictScheduler`, `MaxUtilizationScheduler` and `StaticBatchScheduler` in
cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp and of `MicroBatchScheduler` in microBatchScheduler.cpp beside it
(TensorRT-LLM 1.0), for requests of one beam and chunks by `FIRST_COME_FIRST_SERVED`.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.grants import most_tokens, refuse_reservation
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View, cdiv
from simulator.request import RequestView
from simulator.system import System

CAPACITY_POLICIES = ("guaranteed_no_evict", "max_utilization", "static_batch")


@dataclass(frozen=True, slots=True)
class TensorrtLlm:
    """Decodes first, then prompts in the same step, in the queue's order; `capacity_policy` says who may enter.

    guaranteed_no_evict: who finds blocks for prompt + `max_tokens`; these are granted, so nobody is ever preempted.
    max_utilization: who finds blocks for its prompt. Blocks are taken on demand; when they run out the latest is
    paused, which loses its KV, goes to the head of the queue and is recomputed later.
    static_batch: as guaranteed_no_evict, but only when the batch is empty. Who has finished leaves at once.

    `max_num_seqs` is TensorRT-LLM's `max_batch_size`, `max_num_batched_tokens` its `max_num_tokens`, and
    `enable_chunked_prefill` its chunked context: a prompt that does not fit what a step has left is cut, to a multiple
    of the block size; without it the prompt waits, and one longer than a whole step is refused.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    capacity_policy: str = "guaranteed_no_evict"
    enable_chunked_prefill: bool = True
    order: str = "fcfs"

    def __post_init__(self) -> None:
        if self.capacity_policy not in CAPACITY_POLICIES:
            raise ValueError(f"capacity_policy {self.capacity_policy!r}; it knows {', '.join(CAPACITY_POLICIES)}")

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order)

    @property
    def _slots(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot

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
        draft = _Draft(view, self)
        paused = draft.pause_latest()
        draft.go_on()
        if not paused:
            draft.admit()
        if paused or draft.chunks:
            return StepPlan(preempt=tuple(paused), prefill=tuple(draft.chunks))
        # No slot for an arrival, or it queues behind a head that waits for slot, blocks or budget of who finishes.
        if len(view.running) >= self._slots or (view.waiting and self.order == "fcfs"):
            return _UNTIL_CHANGE
        return _UNTIL_ARRIVAL


class _Draft:
    """A step in the making: what is left of blocks and budget, and the prompts that it computes."""

    def __init__(self, view: View, policy: TensorrtLlm) -> None:
        self.view = view
        self.policy = policy
        self.chunks: list[Chunk] = []
        self.stays = list(view.prefilling)
        self.budget = policy.max_num_batched_tokens - view.num_decoding
        # Prompts under way own the blocks of all of it, though they take them with their chunks.
        promised = sum([self._promised(request) for request in self.stays])
        self.free = view.num_free_blocks - view.decode_blocks_needed - promised

    def pause_latest(self) -> list[Preemption]:
        """The latest admitted leave until the others find blocks for this step."""
        paused = []
        latest = reversed(self.view.running)
        while self.free < 0:
            request = next(latest)
            paused.append(Preemption(request))
            self.free += request.num_blocks
            if request.is_decoding:
                self.free += request.num_computed_tokens % self.view.block_size == 0
                self.budget += 1
            else:
                self.free += self._promised(request)
                self.stays.remove(request)
        return paused

    def go_on(self) -> None:
        """Prompts under way, in order of admission."""
        for request in self.stays:
            tokens = self._cut(request.num_tokens_to_compute)
            if tokens == 0:
                break
            self.chunks.append(Chunk(request, tokens))
            self.budget -= tokens

    def admit(self) -> None:
        """The heads of the queue while slots, blocks and budget last; a static batch gets its slots all at once."""
        policy = self.policy
        is_static = policy.capacity_policy == "static_batch"
        running = len(self.view.running)
        if is_static and running:
            return
        for request in self.view.waiting:
            tokens = self._cut(request.num_tokens_to_compute)
            reserve = most_tokens(request) if policy._grants else 0
            self.free -= cdiv(reserve or request.num_tokens, self.view.block_size)
            if running >= policy._slots or self.free < 0 or (tokens == 0 and not is_static):
                break
            self.chunks.append(Chunk(request, tokens, reserve))
            self.budget -= tokens
            running += 1

    def _cut(self, tokens: int) -> int:
        """What of a prompt's tokens fits the step."""
        if tokens <= self.budget:
            return tokens
        if not self.policy.enable_chunked_prefill:
            return 0
        # A budget below the block size is a unit of its own.
        unit = min(self.view.block_size, self.policy.max_num_batched_tokens)
        return self.budget // unit * unit

    def _promised(self, request: RequestView) -> int:
        return max(0, cdiv(request.num_tokens, self.view.block_size) - request.num_blocks)


_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="TensorRT-LLM in-flight batching",
    batch="every step (`static_batch`: when the batch is empty)",
    prompts="in the same step as the decodes, whole or in chunks",
    grant="prompt + `max_tokens` (`max_utilization`: the prompt)",
    order="fcfs and others",
    victim="nobody (`max_utilization`: the latest)",
    preemption="never (`max_utilization`: recompute)",
)
