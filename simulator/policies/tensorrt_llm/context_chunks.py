"""TensorRT-LLM's ways of dealing out a step's tokens among prompts that have memory.

`PyMicroBatchScheduler` in tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py (revision 002f3cc). Each function
takes the prompts in their order and the tokens that the decodes leave, and returns the tokens of each prompt; prompts
behind the end of the list get none.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.request import RequestView


def whole(prompts: Sequence[RequestView], budget: int) -> list[int]:
    """Whole prompts up to the first that does not fit: `schedule` breaks there."""
    shares: list[int] = []
    for request in prompts:
        tokens = request.num_tokens_to_compute
        if tokens > budget:
            break
        budget -= tokens
        shares.append(tokens)
    return shares


def first_come_first_served(prompts: Sequence[RequestView], budget: int, unit: int) -> list[int]:
    """As much of each as is left, rounded down to whole units where that is not all; 0 passes a prompt over."""
    shares: list[int] = []
    for request in prompts:
        if budget <= 0:
            break
        tokens = request.num_tokens_to_compute
        if tokens > budget:
            tokens = budget // unit * unit
        budget -= tokens
        shares.append(tokens)
    return shares


def equal_progress(prompts: Sequence[RequestView], budget: int, unit: int) -> list[int]:
    """A unit to each in turn, or the rest of its prompt if that is less, until none takes more."""
    wanted = [request.num_tokens_to_compute for request in prompts]
    shares = [0] * len(wanted)
    advancing = True
    while advancing and budget > 0:
        advancing = False
        for place, left in enumerate(wanted):
            tokens = min(unit, left - shares[place])
            if 0 < tokens <= budget:
                shares[place] += tokens
                budget -= tokens
                advancing = True
    return shares
