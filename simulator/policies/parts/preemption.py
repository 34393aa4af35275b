"""How a victim leaves: to be computed again, to the host, or not at all."""

from collections.abc import Iterable
from typing import Annotated, Literal

from annotated_types import doc

from simulator.division import cdiv
from simulator.plan import View
from simulator.request import RequestView

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
