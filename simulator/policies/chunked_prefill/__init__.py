"""vLLM's v1 scheduler (0.33.0, and what differed before): one token budget, running before waiting.

The rules are those of `Scheduler.schedule` in vllm/v1/core/sched/scheduler.py: see `schedule`. A step hands out
`max_num_batched_tokens` first to the running requests in order of admission, then to the head of the queue.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import doc

from simulator.parameters import Count, CountOrZero, check_parameters
from simulator.plan import StepPlan, Traits, View
from simulator.policies.chunked_prefill.cadence import plan_with_cadence
from simulator.policies.chunked_prefill.images import plan_with_images
from simulator.policies.chunked_prefill.limits import VllmLimits
from simulator.policies.chunked_prefill.schedule import grouped_step, itemized_step, step
from simulator.policies.chunked_prefill.versions import (
    NEWEST,
    RULES,
    Version,
    check_images,
    check_intervals,
    check_loras,
    check_version,
)
from simulator.policies.parts.free_blocks import refuse_beyond_budget
from simulator.policies.parts.preemption import (
    Checked,
    EnableChunkedPrefill,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    OrderName,
    System,
    Watermark,
)
from simulator.request import RequestView

# Modules that setup.py compiles where that is asked for.
COMPILED = ("encoder", "images", "limits", "schedule")


@dataclass(frozen=True, slots=True)
class ChunkedPrefill:
    """Prompts computed in chunks beside the decodes. Parameters have vLLM's names and meaning.

    `max_num_active_seqs` bounds the running requests where it is lower than the `max_num_seqs` slots. An adaptive
    threshold for long prompts is never below an even share of the budget.

    `watermark` is the fraction of the blocks that an admission must leave free while others run; `reserve_full_isl`
    admits a prompt only if all of it would fit now, though it takes only the blocks of its first chunk.

    With `async_scheduling` a step is planned while the previous one runs, as in a server of 0.33 by default; without it
    steps follow each other, and the host works in between. With null, only the host's time follows the server's
    default (asynchronous from 0.14 on); plans stay synchronous.
    With `prefill_schedule_interval` above 1, prompts are held back between the steps of a cadence
    (`simulator.policies.chunked_prefill.cadence`), unless the engine is full.
    `version` is vLLM's: see `simulator.policies.chunked_prefill.versions` for what earlier ones did.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    long_prefill_token_threshold: Annotated[
        CountOrZero, doc("tokens of one prompt in a step, at most; 0: no limit")
    ] = 0
    enable_chunked_prefill: EnableChunkedPrefill = True
    watermark: Watermark = 0.0
    reserve_full_isl: Annotated[bool, doc("admit a prompt only if all of it would fit now")] = True
    order: OrderName = "fcfs"
    max_num_active_seqs: Annotated[Count | None, doc("running requests, at most; null: max_num_seqs")] = None
    long_prefill_token_threshold_adaptive: Annotated[
        bool, doc("raise the threshold to an even share of the budget")
    ] = False
    max_loras: Annotated[
        Count | None, doc("adapters (LoRA) that the batch uses at once, at most; null: it serves none")
    ] = None
    max_image_embeddings: Annotated[
        Count | None, doc("embeddings of the largest image that the server takes; null: it takes none")
    ] = None
    disable_chunked_mm_input: Annotated[bool, doc("no chunk of a prompt ends in an image")] = False
    async_scheduling: Annotated[
        bool | None, doc("plan a step while one runs, as vLLM does; null: in turn, with the version's host")
    ] = None
    prefill_schedule_interval: Annotated[
        Count, doc("steps from one that computes prompts to the next, while others decode; 1: no wait")
    ] = 1
    dp_sync_interval: Annotated[
        Count | None, doc("common steps between two looks for work, 16 in vLLM; null: ranks stop at once")
    ] = None
    max_num_partial_prefills: Annotated[
        Count, doc("up to 0.26: above 1, long_prefill_token_threshold 0 is 4 % of the context")
    ] = 1
    version: Version = NEWEST
    _limits: VllmLimits = field(init=False, repr=False, compare=False)

    caches_prefixes: ClassVar[bool] = True
    preempts: ClassVar[bool] = True
    verifies_drafts: ClassVar[bool] = True
    asks_groups: ClassVar[bool] = True
    fills_pipelines: ClassVar[bool] = True

    @property
    def traits(self) -> Traits:
        return Traits(
            order=self.order,
            async_scheduling=bool(self.async_scheduling),
            unknown_blocks_first=RULES[self.version].unknown_blocks_first,
            whole_prompts=not self.enable_chunked_prefill,
            prefill_schedule_interval=self.prefill_schedule_interval,
            dp_sync_interval=self.dp_sync_interval,
            max_loras=self.max_loras,
            encodes_images=self.max_image_embeddings is not None,
        )

    def __post_init__(self) -> None:
        check_parameters(self)
        adaptive = self.long_prefill_token_threshold_adaptive
        check_version(self.version, self.watermark, adaptive, self.max_num_active_seqs)
        check_intervals(self.version, self.prefill_schedule_interval, self.max_num_partial_prefills)
        check_loras(self.version, self.max_loras, self.prefill_schedule_interval)
        slots = self.max_num_active_seqs or self.max_num_seqs
        if slots > self.max_num_seqs:
            raise ValueError(f"max_num_active_seqs must be at most max_num_seqs = {self.max_num_seqs}, not {slots}")
        rules, largest = RULES[self.version], self.max_image_embeddings
        whole, interval = self.disable_chunked_mm_input, self.prefill_schedule_interval
        check_images(self.version, largest, whole, self.max_num_batched_tokens, interval)
        limits = VllmLimits(
            max_num_batched_tokens=self.max_num_batched_tokens,
            slots=slots,
            order=self.order,
            threshold=self.long_prefill_token_threshold,
            is_adaptive=adaptive,
            watermark=self.watermark,
            in_chunks=self.enable_chunked_prefill,
            tests_whole=self.reserve_full_isl and rules.tests_whole_prompt,
            passes_over=rules.passes_over,
            passes_itself=rules.passes_itself,
            spares_lone_request=rules.spares_lone_request,
            max_loras=self.max_loras or 0,
            encoder=0 if largest is None else max(self.max_num_batched_tokens, largest),
            whole_images=self.disable_chunked_mm_input,
        )
        object.__setattr__(self, "_limits", limits)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """Without chunks, a prompt beyond the budget would wait for ever."""
        return None if self.enable_chunked_prefill else refuse_beyond_budget(request, self.max_num_batched_tokens)

    def plan(self, view: View) -> StepPlan:
        drafting = view.drafting
        if drafting is not None and drafting.connector is not None:
            return itemized_step(view, self._limits, view.note)
        if view.groups is not None and drafting is None:
            return grouped_step(view, self._limits, view.groups)
        if self._limits.encoder:
            return plan_with_images(view, self._limits, is_async=bool(self.async_scheduling))
        if self.prefill_schedule_interval > 1:
            return plan_with_cadence(view, self._limits, self.prefill_schedule_interval)
        if drafting is not None:
            return itemized_step(view, self._limits, view.note)
        return step(view, self._limits)


SYSTEM = System(
    name="vLLM v1 (0.33.0)",
    batch="every step",
    prompts="in chunks beside the decodes, running requests first",
    grant="the whole sequence must fit; only the first chunk's blocks are taken",
    order="fcfs, priority and others",
    victim="the latest admitted; by priority the least important",
    preemption="recompute",
    checked=Checked(
        against="vLLM 0.33.0 and the last patch of each minor version from 0.11; forward pass and clock are ours",
        on=(
            "1,000 random cases a version (1,200 for twelve of the 23), half of them asynchronous, some 215,000 steps, "
            "with and without a prefix cache, all equal; of 0.33 also cadences of prompts, aborts at any moment, "
            "ranks in lockstep, LoRA (also on pipelines, with drafts, and with layers that keep different things), "
            "images, drafts of five methods, alone, beside a cadence and in ranks "
            "(4,770 cases), and pipelines of up to 8 stages (560 cases)"
        ),
        uncovered=(
            "drafts of other methods, sliding windows, drafts or images on a pipeline, asynchronous ranks in lockstep"
        ),
    ),
)
STYLE = ("#009e73", "-")
