"""TensorRT-LLM: in-flight batching under one of three capacity policies.

The rules are those of `PyCapacityScheduler` and `PyMicroBatchScheduler` in
tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py (revision 002f3cc; the same as capacityScheduler.cpp and
microBatchScheduler.cpp in cpp/tensorrt_llm/batch_manager), for requests of one beam without drafts. The first gives
memory to requests, the second gives the tokens of a step to those that have memory.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, doc

from simulator.parameters import CountOrZero, check_parameters
from simulator.plan import StepPlan, Traits, View
from simulator.policies.parts.free_blocks import most_tokens, refuse_reservation
from simulator.policies.parts.preemption import (
    Checked,
    EnableChunkedPrefill,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    OrderName,
    System,
)
from simulator.policies.tensorrt_llm.two_schedulers import TensorrtLlmLimits, plan_with_wait, step
from simulator.policy_traits import TakesOver
from simulator.request import RequestView

# Modules that setup.py compiles where that is asked for.
COMPILED = ("two_schedulers",)

CapacityPolicy = Annotated[
    Literal["guaranteed_no_evict", "max_utilization", "static_batch"],
    doc("memory that must be free for a request to be admitted"),
]
ContextChunkingPolicy = Annotated[
    Literal["first_come_first_served", "equal_progress"],
    doc("which prompts get a step's tokens, if together they have more"),
]


@dataclass(frozen=True, slots=True)
class TensorrtLlm:
    """Decodes first, then prompts in the same step, in order of arrival; `capacity_policy` says who has memory.

    guaranteed_no_evict: a request enters that finds blocks for prompt + `max_tokens`; these are granted, so that no
    request is ever preempted.
    max_utilization: it enters if it finds blocks for its prompt. Blocks are taken on demand; where one is missing, for
    a decode or for a prompt, the latest to arrive of those that have begun is paused, unless it arrived before: it
    loses its KV, keeps its place in the order of arrival, and is recomputed later.
    static_batch: as guaranteed_no_evict, but no prompt is computed while a request decodes. The finished leave at once.

    `max_num_seqs` is TensorRT-LLM's `max_batch_size`, `max_num_batched_tokens` its `max_num_tokens`, and
    `enable_chunked_prefill` its chunked context. A prompt that does not fit what a step has left is then cut, to a
    multiple of the block size; one for which less than a block is left is passed over, and a shorter one behind it may
    take the rest. By `equal_progress` all prompts advance by a block in turn. Without chunks a prompt waits for a step
    that has room for it, others wait behind it, and one longer than a whole step is refused.

    With `async_scheduling` a step is planned while the one before it runs, as under the overlap scheduler, which is
    TensorRT-LLM's default; there an answer that ends before its `max_tokens` is decoded once more. A request that comes
    while nothing else is computed than such a token is planned when that step ends, and not before as in TensorRT-LLM
    (`_fetch_and_enqueue_requests`). Not with max_utilization, where TensorRT-LLM may pause a request whose last token
    is on its way. It costs a request a step more before its first token. With a cost of one's own it is off unless
    asked for, so that the three capacity policies compare on one loop.

    With `batch_wait_timeout_iters` and `batch_wait_max_tokens_ratio` prompts wait beside decodes until a step would
    have that share of `max_num_batched_tokens`, for so many steps at most.

    Where TensorRT-LLM would wait for ever, for a block is longer than a step, a whole step is the unit of chunks.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    capacity_policy: CapacityPolicy = "guaranteed_no_evict"
    enable_chunked_prefill: EnableChunkedPrefill = True
    order: OrderName = "fcfs"
    context_chunking_policy: ContextChunkingPolicy = "first_come_first_served"
    async_scheduling: Annotated[bool, doc("plan a step while the one before runs: the overlap scheduler")] = False
    batch_wait_timeout_iters: Annotated[CountOrZero, doc("steps that prompts wait for others, at most; 0: none")] = 0
    batch_wait_max_tokens_ratio: Annotated[
        float, Ge(0), Le(1), doc("share of a step's tokens at which prompts wait no longer; 0: none wait")
    ] = 0.0
    version: Annotated[
        Literal["1.0", "1.1", "1.2", "1.3"], doc("the release of TensorRT-LLM; the rules followed are the same for all")
    ] = "1.3"
    _limits: TensorrtLlmLimits = field(init=False, repr=False, compare=False)

    is_server: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.async_scheduling and not self._grants:
            raise ValueError("async_scheduling must be false with capacity_policy = max_utilization")
        limits = TensorrtLlmLimits(
            slots=min(self.max_num_seqs, self.max_num_batched_tokens),  # a decode step computes a token a slot
            max_num_tokens=self.max_num_batched_tokens,
            grants=self._grants,
            alone=self.capacity_policy == "static_batch",
            in_chunks=self.enable_chunked_prefill,
            equal_progress=self.context_chunking_policy == "equal_progress",
            by_arrival=self.order == "fcfs",
        )
        object.__setattr__(self, "_limits", limits)

    @property
    def traits(self) -> Traits:
        return Traits(
            order=self.order,
            async_scheduling=self.async_scheduling,
            takes_whole_prompt=not self._grants,
            whole_prompts=not self.enable_chunked_prefill,
            reserves=self._grants,
            takes_over=None
            if self.capacity_policy == "static_batch"
            else TakesOver(reserves=self._grants, extra_slots=0, sends_first=True),
        )

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
        if self.batch_wait_timeout_iters and self.batch_wait_max_tokens_ratio:
            return plan_with_wait(view, self._limits, self.batch_wait_timeout_iters, self.batch_wait_max_tokens_ratio)
        return step(view, self._limits)


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
