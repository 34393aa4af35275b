"""What bounds a step of vLLM's scheduler: its parameters, the longest chunk of a prompt, and how long a plan holds."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.plan import Chunk, StepPlan, View
from simulator.policies.parts.plans import decodes_on
from simulator.request import RequestView


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


def servable(view: View, max_loras: int, admitted: Sequence[Chunk]) -> Iterator[RequestView]:
    """The waiting requests that are not skipped, in order; `admitted` grows as the step admits some of them.

    As in `Scheduler.schedule` of vLLM 0.33 (vllm/v1/core/sched/scheduler.py:1038, 1091): a waiting request whose LoRA
    adapter would be one too many is skipped, and those behind it go on. In use are the adapters of all running requests
    and of those that the step has admitted. Who is skipped keeps its place in the queue; nothing else speaks for it, so
    requests of the adapters in use may pass it for ever.
    """
    in_use = set(view.running_loras)
    for request in view.waiting:
        lora = request.lora
        if lora is None or lora in in_use:
            yield request
        elif len(in_use) < max_loras:
            yield request
            if admitted and admitted[-1].request is request:
                in_use.add(lora)


def is_behind_skipped(view: View, max_loras: int) -> bool:
    """True if the first request that could enter is not the head of the queue."""
    first = next(servable(view, max_loras, ()), None)
    return first is not None and first is not view.waiting.head
