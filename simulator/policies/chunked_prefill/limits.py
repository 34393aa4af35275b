"""What bounds a step of vLLM's scheduler: its parameters, the longest chunk of a prompt, and how long a plan holds."""

from typing import NamedTuple

from simulator.plan import StepPlan, View
from simulator.policies.parts.plans import decodes_on


class VllmLimits(NamedTuple):
    """The parameters that bound a step, and the rules in which releases of vLLM differ (`versions.Rules`)."""

    max_num_batched_tokens: int
    slots: int  # running requests, at most
    order: str
    threshold: int = 0  # the longest chunk of a prompt; 0: no limit
    is_adaptive: bool = False  # the threshold is never below an even share of the budget
    watermark: float = 0.0  # fraction of the blocks that an admission leaves free while others run
    in_chunks: bool = True  # a prompt beyond the budget is cut; else it waits for another step
    tests_whole: bool = True  # a prompt enters only if all of it would fit, though it takes its first chunk's blocks
    passes_over: bool = False  # without chunks, others behind a prompt beyond the budget need not wait with it
    passes_itself: bool = True  # by priority, requests behind one that preempts itself go on
    spares_lone_request: bool = True  # the threshold does not count for a lone request
    max_loras: int = 0  # adapters in use, at most; 0: none is known
    encoder: int = 0  # embeddings in the encoder's cache; 0: no images
    whole_images: bool = False  # no chunk ends in an image


def lacks_blocks_alone(limits: VllmLimits) -> bool:
    """True if a request that is not admitted lacks blocks until others finish or fill the blocks that it would hit.

    Admission then tests its whole prompt, less the blocks of it that running requests use. Decodes take free blocks and
    evict blocks that no request uses. Neither makes the prompt fit.
    """
    return limits.tests_whole and limits.in_chunks


def goes_on(view: View, limits: VllmLimits) -> StepPlan:
    """The plan that only decodes. Where a queue has skipped requests, an arrival may enter before them."""
    return decodes_on(view, limits.slots, "" if limits.max_loras else limits.order)


def longest_chunk(view: View, limits: VllmLimits, others: int = 0) -> int:
    """The longest chunk of a prompt; 0 is no limit. `others` are requests that neither wait nor run."""
    threshold = limits.threshold
    if not threshold:
        return 0
    requests = len(view.running) + len(view.waiting) + others
    if requests <= 1 and limits.spares_lone_request:
        return 0
    return max(threshold, limits.max_num_batched_tokens // requests) if limits.is_adaptive else threshold


def share(tokens: int, threshold: int, budget: int) -> int:
    """How many of a request's `tokens` are computed in a step; a threshold of 0 is none."""
    if 0 < threshold < tokens:
        tokens = threshold
    return min(tokens, budget)
