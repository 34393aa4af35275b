"""What policies declare in common, and whom they preempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import doc

from simulator.division import cdiv
from simulator.parameters import Count, Fraction
from simulator.plan import BatchView, Preemption, View
from simulator.queues import OrderName
from simulator.queues.priority import rank
from simulator.request import RequestView

# What policies declare: parameters that many of them have, and their rows of the page of systems.

# The page of systems: a row a policy, in a few words a question.


@dataclass(frozen=True, slots=True)
class Checked:
    """How a policy's decisions were held against those of the system itself."""

    against: str  # the release, and which parts of it ran
    on: str  # so many cases and steps, of what kind, and how many are equal
    uncovered: str  # what was not compared, or is known to differ


@dataclass(frozen=True, slots=True)
class System:
    """A policy among the others: each field answers one question.

    Policies that share one are one scheduler under several names, each with defaults of its own.
    """

    name: str  # of the system, and where it was published
    batch: str  # when may the batch change?
    prompts: str  # how are prompts computed?
    grant: str  # what memory must be there for a request to enter?
    order: str  # in which order do requests wait?
    victim: str  # which request is preempted when memory runs out?
    preemption: str  # how?
    padding: str = "none"
    checked: Checked | None = None  # None: written from publications and sources alone

    def answer(self, parameter: str) -> str | None:
        """The policy's fixed rule where others have this parameter; None if no field describes it."""
        fixed = {"order": self.order, "victim": self.victim, "preemption_mode": self.preemption}
        return fixed.get(parameter)


# Parameters that many policies have. One that a single policy has stands on that policy.

MaxNumSeqs = Annotated[Count, doc("requests in the batch, at most")]
MaxNumBatchedTokens = Annotated[Count, doc("tokens computed in a step, at most")]
Watermark = Annotated[Fraction, doc("fraction of the KV blocks that an admission leaves free while others run")]
EnableChunkedPrefill = Annotated[
    bool, doc("cut a prompt that does not fit the rest of a step; otherwise the prompt waits")
]
__all__ = ["EnableChunkedPrefill", "MaxNumBatchedTokens", "MaxNumSeqs", "OrderName", "Watermark"]


# Preemption: which requests leave when memory runs out, and how: computed again, to the host, or not at all.

# How a victim leaves: to be computed again, to the host, or not at all.

SwapMode = Annotated[Literal["recompute", "swap", "auto"], doc("what happens to a preempted request's KV")]
PreemptionMode = Annotated[
    Literal["recompute", "swap", "auto", "pause"], doc("what happens to a preempted request's KV")
]
"""The parameter `preemption_mode` of a policy without and with `pause`."""


def needs_host(mode: object) -> bool:
    """True if a preemption mode moves KV to host memory."""
    return mode in ("swap", "auto")


def swap_pays(view: View, request: RequestView, ahead: Iterable[RequestView], *, mixed: bool = True) -> bool:
    """Mode `auto`: whether the KV of a victim is better swapped than computed again.

    It is computed again if that is predicted to take less time than moving it out and in, or if the request will
    hardly resume soon (`waits_long`): its KV would only fill the host. `mixed`: the policy computes prompts beside
    decodes, not in steps of their own. Without a prediction (on a device, in a recorded run) it is computed again.
    """
    again_s, moved_s = view.recompute_s(request, mixed=mixed), view.swap_s(request)
    if again_s is None or moved_s is None:
        return False
    return again_s >= moved_s and not waits_long(view, request, ahead)


def waits_long(view: View, request: RequestView, ahead: Iterable[RequestView]) -> bool:
    """True if a whole batch must come and go before `request` can resume.

    That is so if more requests wait `ahead` of it than run now, or if they and it need more blocks than there are.
    """
    most = len(view.running)
    blocks = cdiv(request.num_tokens, view.block_size)
    for place, other in enumerate(ahead, start=1):
        blocks += cdiv(other.num_tokens, view.block_size)
        if place > most or blocks > view.num_blocks:
            return True
    return False


# Which running requests are preempted when memory runs out.

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
