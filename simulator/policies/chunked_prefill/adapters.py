"""vLLM's rule of LoRA: a waiting request whose adapter would be one too many is skipped, and those behind it go on.

As in `Scheduler.schedule` of vLLM 0.33 (vllm/v1/core/sched/scheduler.py:1038, 1091): in use are the adapters of all
running requests and of those that the step has admitted. Who is skipped keeps its place in the queue; nothing else
speaks for it, so requests of the adapters in use may pass it for ever.
"""

from collections.abc import Iterator, Sequence

from simulator.plan import Chunk, View
from simulator.request import RequestView


def servable(view: View, max_loras: int, admitted: Sequence[Chunk]) -> Iterator[RequestView]:
    """The waiting requests that are not skipped, in order; `admitted` grows as the step admits some of them."""
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
