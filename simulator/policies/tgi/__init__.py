"""Text Generation Inference (Hugging Face): prompts in batches of their own, which make the running batch wait.

The rules are those of `batching_task` in backends/v3/src/backend.rs and of `State::next_batch` in queue.rs beside it
(TGI 3, lines of its revision with prefill chunking), for models without padding and sliding window; chunks go on as
`generate_token` of server/text_generation_server/models/flash_causal_lm.py lets them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, cast

from annotated_types import doc
from numpy import float32

from simulator.parameters import Count, CountOrZero, Factor, check_parameters
from simulator.plan import Chunk, Holds, StepPlan, Traits, View, cdiv
from simulator.policies.parts.parameters import EnableChunkedPrefill, MaxNumBatchedTokens, MaxNumSeqs, OrderName
from simulator.policies.parts.reservations import refuse_reservation
from simulator.policies.parts.system import Checked, System
from simulator.policies.parts.vllm_server import LIKE_VLLM_0_12
from simulator.policies.tgi.step import granted_prompts, granted_tokens
from simulator.request import RequestView
from simulator.servers import Command, Deployment


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
    waiting_served_ratio: Annotated[Factor, doc("waiting requests that fit, per running one, that start a prefill")] = (
        0.3
    )
    max_waiting_tokens: Annotated[CountOrZero, doc("steps from one prefill on until the next starts in any case")] = 20
    max_batch_prefill_tokens: Annotated[Count | None, doc("tokens of a prefill; null: max_num_batched_tokens")] = None
    max_batch_total_tokens: Annotated[Count | None, doc("KV tokens of a batch; null: the KV cache")] = None
    order: OrderName = "fcfs"
    enable_chunked_prefill: EnableChunkedPrefill = False

    def __post_init__(self) -> None:
        check_parameters(self)

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
            of_total = _blocks_of(self.max_batch_total_tokens, block_size)
            if cdiv(granted_tokens(request), block_size) > min(of_total, num_blocks) == of_total:
                return (
                    f"{request.input_tokens} input tokens and max_tokens = {request.max_tokens} exceed "
                    f"max_batch_total_tokens = {self.max_batch_total_tokens}, which are {of_total} KV blocks and one "
                    "for health checks"
                )
        return refuse_reservation(request, num_blocks, block_size, granted_tokens(request))

    def plan(self, view: View) -> StepPlan:
        if self.enable_chunked_prefill:
            return self._plan_mixed(view)
        if view.prefilling:  # one at most: it is longer than a prefill
            budget = self._prefill_tokens(view)
            chunks = [Chunk(request, min(request.num_tokens_to_compute, budget)) for request in view.prefilling]
            return StepPlan(prefill=tuple(chunks), decode=False, note=view.note)
        if not view.waiting:
            return _UNTIL_ARRIVAL
        running, decodes = len(view.running), view.decode_steps_since_admission
        if running and not decodes and view.note != _FROM_IDLE:
            return _DECODE
        # The prefill was the first of `max_waiting_tokens` (backend.rs:160, :264).
        steps_left = self.max_waiting_tokens - 1 - decodes
        least = 0
        if steps_left > 0:
            least = int(float32(running) * float32(self.waiting_served_ratio))  # 32 bits, as in :194
            if len(view.waiting) < least:
                return StepPlan(holds=Holds.ARRIVAL, hold_steps=steps_left)
        batch = self._next_batch(view, self._prefill_tokens(view))
        if not batch:
            return self._until_room(view)
        if len(batch) < least:
            # Where one found no room, arrivals queue behind it.
            is_stuck = self.order == "fcfs" and len(batch) < len(view.waiting)
            return StepPlan(holds=Holds.CHANGE if is_stuck else Holds.ARRIVAL, hold_steps=steps_left)
        return StepPlan(prefill=tuple(batch), decode=False, note=None if running else _FROM_IDLE)

    def _plan_mixed(self, view: View) -> StepPlan:
        """A step of a model that supports chunks: decodes, what is left of prompts, and every second time new ones."""
        joined, shares = cast("_Note", view.note or _NOTHING)
        chunks = [Chunk(request, tokens) for request, tokens in shares if request in view.prefilling]
        new: list[Chunk] = []
        if view.waiting and not (joined and view.running):
            current = view.num_decoding + sum([chunk.num_tokens for chunk in chunks])
            new = self._next_batch(view, self._prefill_tokens(view, current))
        if chunks or new:
            chunks += new
            joins = bool(new and view.running)
            return StepPlan(prefill=tuple(chunks), note=(joins, self._shares(chunks, view.num_decoding)))
        if not view.waiting:
            return _UNTIL_ARRIVAL
        return _DECODE if joined else self._until_room(view)

    def _shares(self, chunks: list[Chunk], decoding: int) -> tuple[tuple[RequestView, int], ...]:
        """What is left of prompts behind these chunks, and its tokens in the next step (`generate_token`).

        The requests that stop with this step still count; the prompt that came last is served first.
        """
        budget = self._max_prefill_tokens - (decoding + len(chunks) - 1)
        shares: list[tuple[RequestView, int]] = []
        for request, tokens, *_ in reversed(chunks):
            left = request.num_tokens_to_compute - tokens
            if left:
                shares.append((request, max(1, min(left, budget))))
                budget -= shares[-1][1]
        return tuple(reversed(shares))

    @property
    def _slots(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot

    @property
    def _max_prefill_tokens(self) -> int:
        return min(self.max_num_batched_tokens, self.max_batch_prefill_tokens or self.max_num_batched_tokens)

    def _prefill_tokens(self, view: View, current: int = 0) -> int:
        """Tokens of a prefill beside `current` others, in whole blocks (queue.rs:265)."""
        padded = cdiv(max(0, self._max_prefill_tokens - current), view.block_size) * view.block_size
        return min(self.max_num_batched_tokens - current, padded)

    def _until_room(self, view: View) -> StepPlan:
        """The head finds no room until a request has finished."""
        return _UNTIL_CHANGE if self.order == "fcfs" or len(view.running) >= self._slots else _UNTIL_ARRIVAL

    def _next_batch(self, view: View, left: int) -> list[Chunk]:
        """The heads of the queue that fit: into slots, into what is left of a prefill, and into memory."""
        slots = self._slots - len(view.running)
        free = view.num_free_blocks
        if self.max_batch_total_tokens is not None:
            free -= max(0, view.num_blocks - _blocks_of(self.max_batch_total_tokens, view.block_size))
        return granted_prompts(view, slots, left, free, in_chunks=self.enable_chunked_prefill)


def _blocks_of(tokens: int, block_size: int) -> int:
    """Blocks for requests among so many tokens: block 0 is kept for health checks (block_allocator.rs)."""
    return tokens // block_size - 1


# Whether new prompts have joined a batch with this step, and the tokens of prompts under way in the next.
_Note = tuple[bool, tuple[tuple[RequestView, int], ...]]
_NOTHING: _Note = (False, ())
_FROM_IDLE = "prefilled from idle"
_DECODE = StepPlan()
_UNTIL_CHANGE = StepPlan(holds=Holds.CHANGE)
_UNTIL_ARRIVAL = StepPlan(holds=Holds.ARRIVAL)


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


def _command(policy: Tgi, at: Deployment) -> Command:
    """Write the flags of launcher/src/main.rs."""
    flags = [f"text-generation-launcher --model-id {at.model}"]
    if at.tensor_parallel > 1:
        flags.append(f"--num-shard {at.tensor_parallel}")
    flags.append(f"--max-batch-size {policy.max_num_seqs}")
    for name in ("max_batch_prefill_tokens", "max_batch_total_tokens", "waiting_served_ratio", "max_waiting_tokens"):
        if (value := getattr(policy, name)) is not None:
            flags.append(f"--{name.replace('_', '-')} {value}")
    return Command(" ".join(flags))


SERVER = replace(LIKE_VLLM_0_12, overload_status=429, command=_command)  # `Model is overloaded`
