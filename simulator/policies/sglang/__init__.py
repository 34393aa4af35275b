"""SGLang: prompts first, in batches of their own, and as many requests at a time as its guess of their answers allows.

The rules are those of `Scheduler.get_next_batch_to_run` in python/sglang/srt/managers/scheduler.py, of `PrefillAdder`
in schedule_policy.py and of `ScheduleBatch.retract_decode` in schedule_batch.py. Line numbers are of SGLang 0.5.23.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le, doc

from simulator.parameters import Count, Factor, check_parameters
from simulator.plan import StepPlan, Traits, View
from simulator.policies.parts.preemption import Checked, MaxNumBatchedTokens, MaxNumSeqs, OrderName, System
from simulator.policies.sglang.next_batch_to_run import (
    PrefillDelayer,
    SglangLimits,
    allowed_tokens,
    plan_with_interval,
    step,
)
from simulator.policy_traits import TakesOver
from simulator.request import RequestView

# Modules that setup.py compiles where that is asked for.
COMPILED = ("next_batch_to_run",)

NUM_RESERVED_DECODE_TOKENS = 512
"""Tokens that a decoding server leaves free for each request (arg_groups/fields/disagg.py:109)."""


@dataclass(frozen=True, slots=True)
class Sglang:
    """Prompts that fit are prefilled at once, and decodes wait; with `enable_mixed_chunk` they share the step.

    A prompt enters if there is room for it, for its `max_tokens`, and for what the running ones may still come to
    need: of each, what is left of its `max_tokens`, both 4096 at most, times a ratio. The ratio is 0.7 x
    `schedule_conservativeness` at first and in an idle server, and falls to 0.14 x that in 600 decode steps. Once a
    request found no room, none is tried until a running one has left. On arrival `max_tokens` is lowered to what memory
    holds. With `ignore_eos` all count in full, and without a prefix cache a forecast of when each leaves decides.

    When decodes lack memory, those with the fewest outputs are retracted (then the longest prompt, then the latest)
    and go to the end of the queue, to be computed again. The ratio becomes what the others have decoded, and 20
    tokens more for each, out of their `max_tokens`. One always stays.

    A prefill computes `chunked_prefill_size` tokens. The prompt that does not fit is cut, at a multiple of the block
    size, and no other before it is done; once there are `max_prefill_tokens`, no further one is begun. With a size of
    -1 only a prompt longer than a step is cut, and a prefill stays below `max_prefill_tokens`, but for its first.
    Without a value both are `max_num_batched_tokens`, which bounds a step in any case. `max_num_seqs` is SGLang's
    `max_running_requests`; its radix cache, which SGLang has by default, is `enable_prefix_caching`.

    `async_scheduling` is SGLang's overlap schedule, which its server has unless it is told
    `--disable-overlap-schedule`: a step is planned while the one before runs (`simulator.engine.late_results`).

    With `enable_prefill_delayer`, which needs that schedule, prompts that could enter wait while decodes go on: while
    fewer slots are free than the largest of the latest 16 prefills had requests, and with
    `prefill_delayer_queue_min_ratio` while fewer requests wait than that share of the running ones.

    With a `scheduler_recv_interval` above 1 arrivals are seen after a step with prompts, and at every n-th step of a
    run of decodes.

    With drafts (`engine.speculative_config`) a decode step computes the whole tree of each request, which owns memory
    for twice that ahead of its tokens (`simulator.speculative`). A step with prompts verifies none.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 8192
    chunked_prefill_size: Annotated[
        Annotated[int, Ge(-1), Le(10**9)] | None,
        doc("tokens of a prefill, at most; -1: whole prompts; null: the step's budget"),
    ] = None
    max_prefill_tokens: Annotated[
        Count | None, doc("prefill tokens after which a step starts no other prompt; null: the budget")
    ] = None
    enable_mixed_chunk: Annotated[bool, doc("prompts share a step with the decodes")] = False
    schedule_conservativeness: Annotated[Factor, doc("factor on the share of max_tokens that an admission assumes")] = (
        1.0
    )
    ignore_eos: Annotated[bool, doc("every request asks for exactly max_tokens tokens, as in benchmarks")] = False
    async_scheduling: Annotated[bool, doc("plan a step while the one before runs: SGLang's overlap schedule")] = True
    prefill_max_requests: Annotated[Count | None, doc("requests of a prefill, at most; null: no bound")] = None
    enable_prefill_delayer: Annotated[bool, doc("prompts wait, so that a prefill computes several at once")] = False
    prefill_delayer_max_delay_passes: Annotated[Count, doc("the prefill after so many steps is not delayed")] = 30
    prefill_delayer_token_usage_low_watermark: Annotated[
        Factor | None, doc("no delay below this share of KV memory in use; null: none")
    ] = None
    prefill_delayer_queue_min_ratio: Annotated[
        Factor | None, doc("share of the running requests that must wait for a prefill; null: does not matter")
    ] = None
    prefill_delayer_max_delay_ms: Annotated[
        Annotated[float, Ge(0), Le(10**9)] | None,
        doc("most ms that too short a queue delays a prefill; null: 5000"),
    ] = None
    scheduler_recv_interval: Annotated[Count, doc("decode steps between two looks at what has arrived")] = 1
    order: OrderName = "fcfs"
    version: Annotated[Literal["0.5"], doc("the release of SGLang whose scheduling rules are followed")] = "0.5"
    _limits: SglangLimits = field(init=False, repr=False, compare=False)

    caches_prefixes: ClassVar[bool] = True
    has_radix_tree: ClassVar[bool] = True
    verifies_drafts: ClassVar[bool] = True
    takes_ahead: ClassVar[bool] = True
    is_server: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.chunked_prefill_size == 0:
            raise ValueError("chunked_prefill_size must be at least 1, or -1 for whole prompts, not 0")
        step = self.max_num_batched_tokens
        in_chunks = self.chunked_prefill_size != -1
        limits = SglangLimits(
            slots=min(self.max_num_seqs, step),
            chunk=min(step, self.chunked_prefill_size or step) if in_chunks else step,
            begin=(self.max_prefill_tokens or step) if in_chunks else min(self.max_prefill_tokens or step, step),
            in_chunks=in_chunks,
            mixes=self.enable_mixed_chunk,
            knows_lengths=self.ignore_eos,
            conservativeness=float(self.schedule_conservativeness),
            max_requests=self.prefill_max_requests or inf,
            delayer=self._delayer(),
        )
        object.__setattr__(self, "_limits", limits)

    def _delayer(self) -> PrefillDelayer | None:
        if not self.enable_prefill_delayer:
            return None
        if not self.async_scheduling:
            raise ValueError("enable_prefill_delayer needs async_scheduling: true, as in SGLang")
        return PrefillDelayer(
            slots=min(self.max_num_seqs, self.max_num_batched_tokens),
            max_delay_passes=self.prefill_delayer_max_delay_passes,
            token_usage_low_watermark=self.prefill_delayer_token_usage_low_watermark,
            queue_min_ratio=self.prefill_delayer_queue_min_ratio,
            max_delay_ms=self.prefill_delayer_max_delay_ms,
            prefill_max_requests=self.prefill_max_requests,
        )

    @property
    def traits(self) -> Traits:
        return Traits(
            order=self.order,
            victims_last=self.order == "fcfs",
            async_scheduling=self.async_scheduling,
            overlap_scheduling=self.async_scheduling,
            ranks_when_tried=True,
            whole_prompts=self.chunked_prefill_size == -1,
            pauses_decodes=not self.enable_mixed_chunk,
            takes_over=TakesOver(
                reserved_tokens=NUM_RESERVED_DECODE_TOKENS,
                # `disaggregation_decode_extra_slots` (arg_groups/pd_disaggregation_hook.py:133)
                extra_slots=2 * self.max_num_seqs if self.max_num_seqs <= 32 else 0,
                sends_first=True,
                room_first=True,
            ),
        )

    def caps(self, request: RequestView, num_blocks: int, block_size: int) -> int:
        return allowed_tokens(request, num_blocks, block_size)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """A prompt that leaves no room for an answer would wait for ever."""
        if allowed_tokens(request, num_blocks, block_size) >= 1:
            return None
        return (
            f"{request.input_tokens} input tokens leave no room for an answer beside a page to spare: "
            f"there are {num_blocks} KV blocks ({num_blocks * block_size} tokens)"
        )

    def plan(self, view: View) -> StepPlan:
        if self.scheduler_recv_interval > 1:
            return plan_with_interval(view, self._limits, self.scheduler_recv_interval)
        return step(view, self._limits)


SYSTEM = System(
    name="SGLang",
    batch="every step; once a request found no room, only when another leaves",
    prompts="in prefill steps of their own before decodes, at most one of them cut (`enable_mixed_chunk`: with them)",
    grant="prompt + `max_tokens`, and a falling share of what the running ones have left of theirs",
    order="fcfs, lpm and others",
    victim="the fewest outputs, then the longest prompt",
    preemption="recompute",
    checked=Checked(
        against="SGLang 0.5.23: `Scheduler.get_next_batch_to_run` and all below it, radix cache and results included",
        on="2,000 recorded and 11,609 new random cases, more than 2.7 million steps: radix tree on and off, `fcfs`, "
        "`lpm`, `dfs-weight` and `lof`, pages of 1, 16 and 64, mixed chunks, `ignore_eos`, overlap on and off, "
        "retractions, up to 200 requests; all equal, but for 5 in which, to a rounding error, a request arrives as a "
        "step begins, and one in which what drives the scheduler takes it for idle though a request has come, which "
        "SGLang's own loop receives first; 3 end in SGLang's own error and are equal up to there; an hour of the Azure "
        "chat and of the Mooncake trace, short of memory, under four settings each, all equal; with the PrefillDelayer "
        "400 new cases, all equal; with drafts 1,202, up to 200 requests, 230,000 steps, all equal, 6 of them up to "
        "SGLang's own error",
        uncovered="`random` order, which drafts are accepted and what they cost, a PrefillDelayer that waits for other "
        "ranks, sliding windows, hierarchical cache, priorities; requests with and without `ignore_eos` together; the "
        "abort of a last request that no longer fits; chunks smaller than the decodes beside them",
    ),
)
