"""TensorRT-LLM: in-flight batching under one of three capacity policies.

The rules are those of `PyCapacityScheduler` and `PyMicroBatchScheduler` in
tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py (revision 002f3cc; the same as capacityScheduler.cpp and
microBatchScheduler.cpp in cpp/tensorrt_llm/batch_manager), for requests of one beam without drafts. The first gives
memory to requests, the second gives the tokens of a step to those that have memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Literal

from annotated_types import doc

from simulator.parameters import check_parameters
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import EnableChunkedPrefill, MaxNumBatchedTokens, MaxNumSeqs, OrderName
from simulator.policies.parts.reservations import most_tokens, refuse_reservation
from simulator.policies.parts.system import Checked, System
from simulator.policies.parts.vllm_server import FRONT_END, LIKE_VLLM_0_15, SYNC
from simulator.policies.tensorrt_llm.context_chunks import equal_progress, first_come_first_served, whole
from simulator.policies.tensorrt_llm.step import ARRIVAL, pause, queue_by_arrival
from simulator.request import RequestView
from simulator.servers import Command, Deployment, Server
from simulator.timing.host import Host

CapacityPolicy = Annotated[
    Literal["guaranteed_no_evict", "max_utilization", "static_batch"],
    doc("the memory that a request must find to enter"),
]
ContextChunkingPolicy = Annotated[
    Literal["first_come_first_served", "equal_progress"],
    doc("who gets a step's tokens where the prompts together have more"),
]


@dataclass(frozen=True, slots=True)
class TensorrtLlm:
    """Decodes first, then prompts in the same step, in order of arrival; `capacity_policy` says who has memory.

    guaranteed_no_evict: a request enters that finds blocks for prompt + `max_tokens`; these are granted, so that no
    request is ever preempted.
    max_utilization: it enters if it finds blocks for its prompt. Blocks are taken on demand; where one is missing, for
    a decode or for a prompt, the latest to arrive of those that have begun is paused, unless it arrived before: it
    loses its KV, keeps its place in the order of arrival, and is recomputed later.
    static_batch: as guaranteed_no_evict, but no prompt is computed while any request decodes, be it new or begun.
    Finished requests leave at once.

    `max_num_seqs` is TensorRT-LLM's `max_batch_size`, `max_num_batched_tokens` its `max_num_tokens`, and
    `enable_chunked_prefill` its chunked context. A prompt that does not fit what a step has left is then cut, to a
    multiple of the block size; one for which less than a block is left is passed over, and a shorter one behind it may
    take the rest. By `equal_progress` all prompts advance by a block in turn. Without chunks a prompt waits for a step
    that has room for it, others wait behind it, and one longer than a whole step is refused.

    With `async_scheduling` a step is planned while the one before it runs, as under the overlap scheduler, which is
    TensorRT-LLM's default; there an answer that ends before its `max_tokens` is decoded once more. A request that comes
    while nothing else is computed than such a token is planned when that step ends, and not before as in TensorRT-LLM
    (`_fetch_and_enqueue_requests`). Not with max_utilization, where TensorRT-LLM may pause a request whose last token
    is on its way; so that the three capacity policies compare on one loop, it is off unless asked for. It costs a
    request a step more before its first token.

    Where TensorRT-LLM would wait for ever, for a block is longer than a step, a whole step is the unit of chunks.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    capacity_policy: CapacityPolicy = "guaranteed_no_evict"
    enable_chunked_prefill: EnableChunkedPrefill = True
    order: OrderName = "fcfs"
    context_chunking_policy: ContextChunkingPolicy = "first_come_first_served"
    async_scheduling: Annotated[bool, doc("plan a step while the one before runs: the overlap scheduler")] = False

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.async_scheduling and not self._grants:
            raise ValueError("async_scheduling must be false with capacity_policy = max_utilization")

    @property
    def traits(self) -> Traits:
        return Traits(
            order=self.order,
            async_scheduling=self.async_scheduling,
            takes_whole_prompt=not self._grants,
            whole_prompts=not self.enable_chunked_prefill,
            reserves=self._grants,
        )

    @property
    def _grants(self) -> bool:
        return self.capacity_policy != "max_utilization"

    @property
    def _by_arrival(self) -> bool:
        return self.order == "fcfs"

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
        decoding = len(view.running) > len(view.prefilling)
        if decoding and self.capacity_policy == "static_batch":
            return _UNTIL_CHANGE
        if not view.prefilling and not view.waiting and view.decode_blocks_needed <= view.num_free_blocks:
            return _UNTIL_ARRIVAL
        prompts, paused, is_full = self._with_memory(view)
        chunks = self._chunks(view, prompts, paused) if prompts else ()
        if paused:
            return StepPlan(
                preempt=tuple([Preemption(request) for request in paused]),
                prefill=chunks,
                requeue=queue_by_arrival(view, paused, chunks) if self._by_arrival else None,
            )
        if chunks:
            return StepPlan(prefill=chunks)
        if prompts and not self._grants:
            return _STEP  # memory is given to them anew at each step, though no tokens are left
        stuck = is_full or (prompts and not self.enable_chunked_prefill)
        return _UNTIL_CHANGE if (stuck and self._by_arrival) or not self._free_slots(view) else _UNTIL_ARRIVAL

    def _free_slots(self, view: View) -> int:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        return max(0, slots - len(view.running))

    def _with_memory(self, view: View) -> tuple[list[RequestView], list[RequestView], bool]:
        """The prompts that have memory, the requests paused for that, and whether the next prompt finds none."""
        free = view.num_free_blocks - view.decode_blocks_needed
        if free < 0:
            return *pause(view, self._free_slots(view), self._by_arrival), True
        prompts: list[RequestView] = []
        # The order of arrival (fcfs): only whole prompts overtake others, and decode from then on.
        for request in chain(view.prefilling, islice(view.waiting, self._free_slots(view))):
            if request not in view.prefilling:
                free -= cdiv(most_tokens(request) if self._grants else request.num_tokens, view.block_size)
            if free < 0:
                overtaken = self._by_arrival and max(map(ARRIVAL, view.running), default=-1) > request.row
                if overtaken and not self._grants:
                    return *pause(view, self._free_slots(view), True), True
                return prompts, [], True
            prompts.append(request)
        return prompts, [], False

    def _chunks(self, view: View, prompts: list[RequestView], paused: list[RequestView]) -> tuple[Chunk, ...]:
        """The tokens that each prompt gets in this step (`PyMicroBatchScheduler.schedule`)."""
        budget = self.max_num_batched_tokens - view.num_decoding + sum([request.is_decoding for request in paused])
        if not self.enable_chunked_prefill:
            shares = whole(prompts, budget)
        else:
            unit = min(view.block_size, self.max_num_batched_tokens)
            fill = equal_progress if self.context_chunking_policy == "equal_progress" else first_come_first_served
            shares = fill(prompts, budget, unit)
        grants = self._grants
        return tuple(
            [
                Chunk(request, tokens, most_tokens(request) if grants else 0)
                for request, tokens in zip(prompts, shares, strict=False)
                if tokens
            ]
        )


_STEP = StepPlan()
_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="TensorRT-LLM in-flight batching",
    batch="every step (`static_batch`: when no request decodes)",
    prompts="in the same step as the decodes, whole or in chunks",
    grant="prompt + `max_tokens` (`max_utilization`: the prompt)",
    order="fcfs and others",
    victim="none (`max_utilization`: the latest to arrive)",
    preemption="never (`max_utilization`: recompute)",
    checked=Checked(
        against="a reference written from the sources, TensorRT-LLM 002f3cc: both schedulers and the executor's loops",
        on=(
            "2,000 random cases, 402,044 steps, all equal: guaranteed_no_evict and static_batch with and without the "
            "overlap scheduler, max_utilization without, chunks of both kinds and none, 400 cases each"
        ),
        uncovered=(
            "TensorRT-LLM itself; arrivals while only a token to be thrown away is computed; block reuse, beams, "
            "drafts, sliding windows, pipeline stages; max_utilization under the overlap scheduler; more slots than "
            "tokens in a step; other orders than fcfs, which it has not"
        ),
    ),
)


def _command(policy: TensorrtLlm, at: Deployment) -> Command:
    """Write the flags of tensorrt_llm/commands/serve.py, and the options of llmapi/llm_args.py."""
    flags = [f"trtllm-serve {at.model}"]
    if at.tensor_parallel > 1:
        flags.append(f"--tp_size {at.tensor_parallel}")
    flags.append(f"--max_batch_size {policy.max_num_seqs} --max_num_tokens {policy.max_num_batched_tokens}")
    chunked = "true" if policy.enable_chunked_prefill else "false"
    overlap = "false" if policy.async_scheduling else "true"
    options = (
        f"{{enable_chunked_prefill: {chunked}, disable_overlap_scheduler: {overlap}, "
        f"scheduler_config: {{capacity_scheduler_policy: {policy.capacity_policy.upper()}, "
        f"context_chunking_policy: {policy.context_chunking_policy.upper()}}}}}"
    )
    flags.append("--extra_llm_api_options options.yaml")
    return Command(" ".join(flags), [f"options.yaml: {options}"])


SERVER = Server(
    FRONT_END,
    LIKE_VLLM_0_15,
    synchronous=Host(
        SYNC.step_s,
        SYNC.per_seq_s,
        "TensorRT-LLM without overlap: assumed as vLLM 0.12, 5.9 ms at 64 at once; with overlap an iteration is of"
        " 4.6 ms there, and the host works for about as long as the GPU (NVIDIA/TensorRT-LLM, issue 13957)",
    ),
    asynchronous=Host(
        0.58e-3,
        0.0,
        "TensorRT-LLM with overlap, Llama-3.1-8B fp8 on B200 at 64 at once: 580 us of idle GPU an iteration"
        " (NVIDIA/TensorRT-LLM, issue 13957)",
    ),
    overlaps_since=None,
    command=_command,
)
