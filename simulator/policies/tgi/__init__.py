"""Text Generation Inference (Hugging Face): prompts in batches of their own, which make the running batch wait.

The rules are those of `batching_task` in backends/v3/src/backend.rs and of `State::next_batch` in queue.rs beside it
(TGI 3, lines of its revision with prefill chunking), for models without padding and sliding window; chunks go on as
`generate_token` of server/text_generation_server/models/flash_causal_lm.py lets them.
"""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import doc

from simulator.division import cdiv
from simulator.parameters import Count, CountOrZero, Factor, check_parameters
from simulator.plan import StepPlan, Traits, View
from simulator.policies.parts.free_blocks import refuse_reservation
from simulator.policies.parts.preemption import (
    Checked,
    EnableChunkedPrefill,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    OrderName,
    System,
)
from simulator.policies.tgi.batching_task import TgiLimits, blocks_of, granted_tokens, step
from simulator.request import RequestView

# Modules that setup.py compiles where that is asked for.
COMPILED = ("batching_task",)


@dataclass(frozen=True, slots=True)
class Tgi:
    """A new batch's prefill pauses the running one, so it comes when it is worth that, or has waited long enough.

    While requests run, the heads of the queue are prefilled together if those that fit are at least
    `waiting_served_ratio` times as many as run, rounded down. `max_waiting_tokens` steps after the last prefill, which
    is the first of these steps, any number will do. A decode step comes between two prefills, but not behind the first
    of a server that was idle: a second may follow it at once (`batching_task` looks at the queue before each decode).
    With an empty batch the heads are prefilled at once.

    A prefill computes at most `max_batch_prefill_tokens`, rounded up to whole blocks. Each request is granted blocks
    for its prompt and all but the last token of `max_tokens`, whose KV is never needed: no request is preempted, and
    none passed over. `max_batch_total_tokens` are the tokens of those blocks, of which one is kept for health checks.

    Without a value, `max_batch_prefill_tokens` is `max_num_batched_tokens`, which bounds it in any case, and
    `max_batch_total_tokens` what the KV blocks hold. `max_num_seqs` is TGI's `max_batch_size`. A prompt longer than a
    prefill, which TGI refuses, takes several in a row.

    With `enable_chunked_prefill`, as for models that support it, ratio and waiting do not count (backend.rs:175). The
    heads of the queue join the batch, decodes and all, in every second step at most, and in as many tokens as the batch
    leaves of a prefill; the last is cut. What is left of prompts goes on beside the decodes, the newest first, each
    with a token at least. TGI bounds such a batch by memory alone; `max_num_seqs` bounds it here.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 2048
    waiting_served_ratio: Annotated[
        Factor, doc("waiting requests that fit, for each running one, from which on a prefill starts")
    ] = 0.3
    max_waiting_tokens: Annotated[CountOrZero, doc("steps after a prefill until the next one starts in any case")] = 20
    max_batch_prefill_tokens: Annotated[
        Count | None, doc("tokens of a prefill, at most; null: max_num_batched_tokens")
    ] = None
    max_batch_total_tokens: Annotated[Count | None, doc("KV tokens of a batch; null: the KV cache")] = None
    order: OrderName = "fcfs"
    enable_chunked_prefill: EnableChunkedPrefill = False
    _limits: TgiLimits = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        limits = TgiLimits(
            slots=min(self.max_num_seqs, self.max_num_batched_tokens),  # a decode step computes a token a slot
            step_tokens=self.max_num_batched_tokens,
            prefill_tokens=min(
                self.max_num_batched_tokens, self.max_batch_prefill_tokens or self.max_num_batched_tokens
            ),
            total_tokens=self.max_batch_total_tokens,
            waiting_served_ratio=self.waiting_served_ratio,
            max_waiting_tokens=self.max_waiting_tokens,
            in_chunks=self.enable_chunked_prefill,
            order=self.order,
        )
        object.__setattr__(self, "_limits", limits)

    @property
    def traits(self) -> Traits:
        return Traits(
            order=self.order,
            whole_prompts=not self.enable_chunked_prefill,
            pauses_decodes=not self.enable_chunked_prefill,
            reserves=True,
        )

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        if self.max_batch_total_tokens is not None:
            of_total = blocks_of(self.max_batch_total_tokens, block_size)
            if cdiv(granted_tokens(request), block_size) > min(of_total, num_blocks) == of_total:
                return (
                    f"{request.input_tokens} input tokens and max_tokens = {request.max_tokens} exceed "
                    f"max_batch_total_tokens = {self.max_batch_total_tokens}, which are {of_total} KV blocks and one "
                    "for health checks"
                )
        return refuse_reservation(request, num_blocks, block_size, granted_tokens(request))

    def plan(self, view: View) -> StepPlan:
        return step(view, self._limits)


SYSTEM = System(
    name="Text Generation Inference",
    batch="when enough wait, or after `max_waiting_tokens` steps",
    prompts="whole, in a prefill that pauses the running batch (`enable_chunked_prefill`: in chunks beside it)",
    grant="prompt + `max_tokens` - 1, within `max_batch_total_tokens`",
    order="fcfs and others",
    victim="none",
    preemption="never",
    checked=Checked(
        against="a reference written from the sources, TGI 3: router, queue, block allocator and the chunks of a batch",
        on="800 random cases, 150,758 steps, all equal, half of them with chunks",
        uncovered=(
            "TGI itself; prefix caching, sliding windows, speculation, padding; prompts longer than a prefill and "
            "batches of more than `max_num_seqs` with chunks; other orders than fcfs, which it has not"
        ),
    ),
)
