"""How a victim leaves: to be computed again, to the host, or not at all; parts that several policies share."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.plan import View, cdiv
from simulator.request import RequestView

MODES = ("recompute", "swap", "auto", "pause")
"""Of `preemption_mode`; what a policy makes of them is its own to say."""


def swap_pays(view: View, request: RequestView, ahead: Iterable[RequestView], *, mixed: bool = True) -> bool:
    """Mode `auto`: whether the KV of a victim is better swapped than computed again.

    Computed again, if that is predicted to take less time than moving it out and in, or if the request will hardly
    resume soon (`waits_long`): its KV would only fill the host. `mixed` says whether the policy computes prompts
    beside decodes, or in steps of their own. Where nothing predicts (a device, a recorded run), it is computed again.
    """
    again_s, moved_s = view.recompute_s(request, mixed=mixed), view.swap_s(request)
    if again_s is None or moved_s is None:
        return False
    return again_s >= moved_s and not waits_long(view, request, ahead)


def waits_long(view: View, request: RequestView, ahead: Iterable[RequestView]) -> bool:
    """Whether a whole batch must come and go before `request` can resume.

    So it is when the requests `ahead` of it in the queue are more than those that run now, or need, with its own,
    more blocks than the device has.
    """
    most = len(view.running)
    blocks = cdiv(request.num_tokens, view.block_size)
    for place, other in enumerate(ahead, start=1):
        blocks += cdiv(other.num_tokens, view.block_size)
        if place > most or blocks > view.num_blocks:
            return True
    return False
