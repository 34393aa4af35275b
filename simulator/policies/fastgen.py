"""DeepSpeed-FastGen's Dynamic SplitFuse (C. Holmes et al., arXiv 2401.08671): forward passes of one fixed size.

The rules are those of `RaggedBatchBase` in mii/batching/ragged_batching.py of DeepSpeed-MII; the default size is
DeepSpeed's `max_ragged_batch_size`, 768 tokens.
"""

from dataclasses import dataclass
from itertools import chain
from typing import cast

from simulator.division import cdiv
from simulator.parameters import check_parameters
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View
from simulator.policies.parts.preemption import Checked, MaxNumBatchedTokens, MaxNumSeqs, OrderName, System
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Fastgen:
    """Forward passes of a fixed number of tokens, filled to the brim: decodes, then prompts split or composed to fit.

    `max_num_batched_tokens` is that size, and `max_num_seqs` bounds the requests of one pass. A long prompt is split
    over several passes; short ones are put together, and the last is cut where the pass is full. A prompt goes on, or
    enters, only if all that is left of it would fit into the free blocks now; it takes those of its chunk.

    Memory that runs out pauses requests and preempts none: a decode that finds no block sits the pass out, keeps what
    it has, and comes first in the next. Only when no request at all can go on is KV thrown away, that of the request
    which decoded last; it queues as if it had just arrived. The KV of an answer that has ended is freed two passes
    later: the pass after it reads that it is to be freed, and the next one frees it (`_queue_flush_request`). Where
    memory is always full that is a collapse: DeepSpeed-MII warns of it, and advises fewer requests at a time.

    `chunked_prefill` and `sarathi` preempt the latest instead. With ample memory all three differ in defaults alone.

    Where DeepSpeed-MII stops in an assertion ("no request consumes KV cache"), as the prompts at hand find no room and
    the KV of those that have ended is not free yet, this goes on with empty passes until it is. And a prompt under way
    that holds all blocks there are is computed to its end, where DeepSpeed-MII flushes it and begins again for ever.
    """

    max_num_seqs: MaxNumSeqs = 256
    max_num_batched_tokens: MaxNumBatchedTokens = 768
    order: OrderName = "fcfs"

    def __post_init__(self) -> None:
        check_parameters(self)

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order, victims_last=True, skips_empty_steps=True, frees_late=2, slots_by_step=True)

    def plan(self, view: View) -> StepPlan:
        slots = min(self.max_num_seqs, self.max_num_batched_tokens)  # a decode step computes a token a slot
        note, stuck = view.note, []
        if view.decode_blocks_needed > view.num_free_blocks or view.num_decoding > slots:
            decodes = self._decodes(view)
            stuck = self._stuck(view, decodes, slots)
            note = (*dict.fromkeys((*stuck, *decodes)),)
        decoding = view.num_decoding - len(stuck)
        chunks = self._fill(view, slots, decoding, stuck) if view.prefilling or view.waiting else []
        if not chunks and not decoding and view.running:
            return self._begin_again(view, note)
        if chunks:
            return StepPlan(prefill=tuple(chunks), paused=tuple(stuck), note=note)
        if view.num_decoding > slots:
            holds = Holds.STEP  # they take turns
        elif stuck or view.prefilling or decoding >= slots or (view.waiting and self.order == "fcfs"):
            holds = Holds.CHANGE  # no memory or slot for an arrival, or not its turn
        else:
            holds = Holds.ARRIVAL
        return StepPlan(paused=tuple(stuck), holds=holds, note=note)

    @staticmethod
    def _decodes(view: View) -> list[RequestView]:
        """The decoding requests in the order of their turns: the note's, then those whose prompts have ended since."""
        noted = cast("tuple[RequestView, ...]", view.note or ())
        turns = dict.fromkeys([request for request in noted if request.is_decoding and request in view.running])
        return [*turns, *[request for request in view.running if request.is_decoding and request not in turns]]

    @staticmethod
    def _stuck(view: View, decodes: list[RequestView], slots: int) -> list[RequestView]:
        """The decodes without a slot or without a block for their next token (`_schedule_token_gen`)."""
        free = view.num_free_blocks
        stuck = []
        for request in decodes[:slots]:
            if request.num_computed_tokens % view.block_size == 0:
                if free == 0:
                    stuck.append(request)
                else:
                    free -= 1
        return [*stuck, *decodes[slots:]]

    def _fill(self, view: View, slots: int, decoding: int, stuck: list[RequestView]) -> list[Chunk]:
        """Chunks of prompts until the pass is full (`_schedule_prompts`); the one cut last goes on first."""
        size = view.block_size
        taken = view.decode_blocks_needed
        taken -= sum([request.num_computed_tokens % size == 0 for request in stuck])
        room = view.num_free_blocks - taken
        budget = self.max_num_batched_tokens - decoding
        chunks: list[Chunk] = []
        if view.num_free_blocks == 0 and all(request.num_blocks < view.num_blocks for request in view.prefilling):
            return chunks  # not even a prompt under way that would fit into blocks of its own goes on
        for request in chain(reversed(view.prefilling), view.waiting):
            if budget == 0 or decoding + len(chunks) >= slots:
                break
            left, computed, owned = request.num_tokens_to_compute, request.num_computed_tokens, request.num_blocks
            if cdiv(computed + left, size) - owned > room:
                if left > 1:
                    break
                continue  # a prompt of a single token is passed over
            tokens = min(left, budget)
            room -= cdiv(computed + tokens, size) - owned
            budget -= tokens
            chunks.append(Chunk(request, tokens))
        return chunks

    def _begin_again(self, view: View, note: object) -> StepPlan:
        """No request can go on (`reset_request_status`): the last that holds KV is flushed, unless some comes free."""
        decodes = self._decodes(view)
        if view.late_blocks[0]:
            return StepPlan(paused=tuple(decodes), note=note)
        last = decodes[-1] if decodes else next(iter(view.prefilling))
        left = tuple([request for request in decodes if request is not last])
        return StepPlan(preempt=(Preemption(last),), paused=left, note=left)


SYSTEM = System(
    name="DeepSpeed-FastGen, Dynamic SplitFuse",
    batch="every step",
    prompts="long ones split and short ones composed, to fill a fixed forward size exactly",
    grant="blocks of the chunk",
    order="fcfs and others",
    victim="none while a request can go on; else the one that decoded last",
    preemption="recompute",
    checked=Checked(
        against="DeepSpeed-MII d100a85, its loop of ragged batches; counts of blocks, forward pass and clock are ours",
        on="269 random cases, 38,387 steps, all equal: 200 with ample memory, 69 with little",
        uncovered="31 cases with little memory in which the real loop stops in an assertion; other orders than fcfs",
    ),
)
