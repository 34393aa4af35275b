"""Which running requests are preempted when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import doc

from simulator.plan import BatchView, Preemption, View
from simulator.policies.parts.preemption import swap_pays
from simulator.queues.priority import rank
from simulator.request import RequestView

VICTIMS: dict[str, Callable[[RequestView], tuple[int, ...]]] = {
    "last": lambda request: (),
    "lowest_priority": rank,
    "least_progress": lambda request: (-request.num_computed_tokens,),
    "most_memory": lambda request: (request.num_blocks,),
    "fewest_outputs": lambda request: (-request.output_tokens_so_far, request.input_tokens),
}
"""Rules by name: the request of the largest key leaves first, and of equals the latest admitted.

`last` is the latest admitted, `lowest_priority` the latest to arrive of the least important, `least_progress` has the
fewest tokens computed and so the least to lose, `most_memory` frees the most, and `fewest_outputs` has answered least,
of equals the longest prompt (as in SGLang). `preemptive` applies a rule among requests of the least important priority.
"""

if TYPE_CHECKING:
    Victim = str
else:
    Victim = Annotated[
        Literal[tuple(VICTIMS)],
        doc("request preempted first (preemptive: of the lowest priority); null: the order's rule"),
    ]
"""The parameter `victim`: one of `VICTIMS`."""


def usual_victim(order: str) -> str:
    """The rule of a queue order where no other is chosen, as in vLLM."""
    return "lowest_priority" if order == "priority" else "last"


def first_to_leave(running: BatchView, order: str, victim: str | None = None) -> Iterable[RequestView]:
    """The running requests, the next victim first: by the rule named, else by that of the order."""
    rule = victim or usual_victim(order)
    if rule == "last":
        return reversed(running)
    return sorted(running, key=VICTIMS[rule])[::-1]  # of equals the latest first


def preemptions(view: View, victims: Iterable[RequestView], mode: str) -> tuple[Preemption, ...]:
    """How these leave, in this order: by `mode` to the host as far as it has room and their prompt is computed."""
    free_host = view.num_free_host_blocks
    leaving: list[Preemption] = []
    for request in victims:
        blocks = request.num_blocks
        to_host = mode != "recompute" and blocks <= free_host and request.is_decoding
        if to_host and mode == "auto":
            returning = [other for other in view.waiting if other.is_swapped]
            ahead = [*returning, *[other for other, swap, _ in leaving if swap]]
            to_host = swap_pays(view, request, ahead, mixed=False)
        leaving.append(Preemption(request, to_host))
        free_host -= blocks if to_host else 0
    return tuple(leaving)
