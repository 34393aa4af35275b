"""A batching policy of one's own: shortest prompt first.

    batchlab run quickstart --set engine.policy=./my_policy.py:ShortestPrompt
    batchlab compare quickstart --policies chunked_prefill,./my_policy.py:ShortestPrompt
    batchlab check policy ./my_policy.py

A policy is a dataclass. Its fields are its parameters: `engine:` keys of the same name in a scenario fill them, and
a key that it does not have, or a value beyond the limits that a field declares, is an error. Before every step it is
asked one thing, `plan(view)`: what changes in the batch. It looks at the view (waiting and running requests, free
blocks, the time) and changes nothing itself. It never sees how long an answer will be; `max_tokens` is the client's
cap. `simulator/plan.py` has all that a view shows and all that a plan may say. Seven fields suffice for your own
policy: `preempt`, `resume`, `prefill`, `decode`, `paused`, `holds` and `wait_until_s`.

This one computes prompts in chunks, next to the decodes, within `max_num_batched_tokens`. A request enters when the
memory for its prompt and its whole cap is free, so no request is ever preempted; long prompts wait for short ones, and
under load they may wait long: `priority`, `arrival_s` and `now_s` are there to do better.
"""

from dataclasses import dataclass
from heapq import nsmallest
from typing import Annotated

from annotated_types import Ge

from simulator.division import cdiv
from simulator.plan import Chunk, StepPlan, View
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class ShortestPrompt:
    """Shortest prompt first, in chunks, with the memory for the whole answer granted at admission."""

    max_num_seqs: Annotated[int, Ge(1)] = 256
    max_num_batched_tokens: Annotated[int, Ge(1)] = 2048

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """Why this request can never be served with so much memory; None if it can."""
        needed = cdiv(longest(request), block_size)
        if needed <= num_blocks:
            return None
        return f"prompt and cap need {needed} blocks, there are {num_blocks}"

    def plan(self, view: View) -> StepPlan:
        """All running requests decode; what is left of the token budget goes to prompts."""
        budget = self.max_num_batched_tokens - view.num_decoding
        free_blocks = view.num_free_blocks
        chunks: list[Chunk] = []

        for request in view.prefilling:  # prompts that have been begun
            if budget <= 0:
                break
            num_tokens = min(request.num_tokens_to_compute, budget)
            chunks.append(Chunk(request, num_tokens))
            budget -= num_tokens

        # Every request in the batch decodes one token a step, so the budget bounds the slots too.
        slots = min(self.max_num_seqs, self.max_num_batched_tokens) - len(view.running)
        for request in nsmallest(slots, view.waiting, key=shortest_first):
            needed = cdiv(longest(request), view.block_size)
            if budget <= 0 or needed > free_blocks:
                break
            num_tokens = min(request.num_tokens, budget)
            chunks.append(Chunk(request, num_tokens, reserve_tokens=longest(request)))
            budget -= num_tokens
            free_blocks -= needed

        return StepPlan(prefill=tuple(chunks))


def shortest_first(request: RequestView) -> tuple[int, int]:
    """Order of the waiting requests; `row` breaks ties by arrival."""
    return request.input_tokens, request.row


def longest(request: RequestView) -> int:
    """Tokens that the request may come to hold."""
    return request.input_tokens + request.max_tokens
