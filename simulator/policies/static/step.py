"""Batches that form, run and end as a whole: static batching."""

from itertools import islice
from typing import Final

from simulator.division import cdiv
from simulator.plan import Chunk, StepPlan, View
from simulator.policies.parts.plans import UNTIL_CHANGE, chunk_of, step_plan
from simulator.request import RequestView

_REST: Final = StepPlan()


def step(view: View, slots: int, max_tokens: int, timeout_s: float) -> StepPlan:
    """The plan of a step of at most `max_tokens`; a batch starts when it is full, or `timeout_s` after it was begun."""
    if view.prefilling:
        return step_plan(prefill=tuple(_continued(view, max_tokens)), decode=False)
    if len(view.running):
        return UNTIL_CHANGE
    if not view.waiting:
        return _REST
    batch, full = _formed(view, slots)
    deadline_s = view.waiting.head.arrival_s + timeout_s
    if not full and view.now_s < deadline_s:
        return StepPlan(wait_until_s=deadline_s)
    return step_plan(prefill=tuple(_begun(batch, max_tokens)), decode=False)


def _formed(view: View, slots: int) -> tuple[list[RequestView], bool]:
    """The heads of the queue that one batch can hold, and whether it is then full."""
    size, num_blocks = view.block_size, view.num_blocks
    batch: list[RequestView] = []
    longest = most_output = 0
    for request in islice(view.waiting, slots):
        longest = max(longest, request.input_tokens)
        most_output = max(most_output, request.max_tokens)
        if (len(batch) + 1) * cdiv(longest + most_output, size) > num_blocks:
            return batch, True
        batch.append(request)
    return batch, len(batch) == slots


def _begun(batch: list[RequestView], max_tokens: int) -> list[Chunk]:
    """Admit the whole batch; compute as many padded prompts as the budget allows."""
    longest = max([request.input_tokens for request in batch])
    reserve = longest + max([request.max_tokens for request in batch])
    budget = max_tokens
    chunks = []
    for request in batch:
        tokens = min(longest, budget)
        budget -= tokens
        chunks.append(Chunk(request, tokens, reserve, longest - request.input_tokens))
    return chunks


def _continued(view: View, max_tokens: int) -> list[Chunk]:
    """Continue the prompts, in order, as far as the budget goes."""
    budget = max_tokens
    chunks = []
    for request in view.prefilling:
        if budget == 0:
            break
        tokens = min(request.num_tokens_to_compute, budget)
        budget -= tokens
        chunks.append(chunk_of(request, tokens))
    return chunks
