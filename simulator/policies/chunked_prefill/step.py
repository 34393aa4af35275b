"""The step of a policy with one token budget where nothing lacks room: nearly every step is one.

Every running request goes on, and heads of the queue enter. `token_budget` has the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.plan import Chunk, StepPlan, View, cdiv
from simulator.policies.chunked_prefill.admission import AdmissionRule, admit
from simulator.policies.chunked_prefill.token_budget import share
from simulator.policies.parts.plans import UNTIL_ARRIVAL, UNTIL_CHANGE, chunk_of, prefill_plan
from simulator.request import RequestView


def usual_step(view: View, rule: AdmissionRule, max_tokens: int, threshold: int, order: str) -> StepPlan | None:
    """The plan of a step of at most `max_tokens`, or None where budget or blocks do not suffice for all that runs.

    `threshold` is the longest chunk of a prompt; 0 is no limit.
    """
    prefilling = view.prefilling
    budget = max_tokens - view.num_decoding
    free = view.num_free_blocks - view.decode_blocks_needed
    if budget < 0 or free < 0:
        return None
    chunks: list[Chunk] = []
    if prefilling:
        # Nearly always a single prompt is under way, and it was the last to be admitted.
        last = next(reversed(view.running))
        if len(prefilling) > 1 or last not in prefilling:
            return None
        if budget:
            tokens = share(last.num_tokens_to_compute, threshold, budget)
            free -= cdiv(last.num_computed_tokens + tokens, view.block_size) - last.num_blocks
            if free < 0:
                return None
            budget -= tokens
            chunks.append(chunk_of(last, tokens))
    if budget > 0 and view.waiting:
        if view.caches_prefixes:
            return StepPlan(prefill=tuple(chunks), more=True)
        passed = admit(view, rule, threshold, budget, free, chunks) if len(view.running) < rule.slots else ()
        if passed:
            holds = decodes_on(view, rule, order).holds
            return StepPlan(prefill=tuple(chunks), holds=holds, requeue=to_front(passed, order))
    return prefill_plan(chunks) if chunks else decodes_on(view, rule, order)


def decodes_on(view: View, rule: AdmissionRule, order: str) -> StepPlan:
    """The plan that only decodes: it holds until an arrival that could enter."""
    if len(view.running) >= rule.slots or (order == "fcfs" and view.waiting):
        return UNTIL_CHANGE  # no slot for an arrival, or it queues behind a head that is stuck
    return UNTIL_ARRIVAL


def to_front(passed: Sequence[RequestView], order: str) -> tuple[RequestView, ...] | None:
    """Requests passed over return to the front of the queue, the last of them first (0.11.2, scheduler.py:630)."""
    return tuple(reversed(passed)) if passed and order == "fcfs" else None
