"""Answers of SGLang's scheduler as plans."""

from collections.abc import Mapping
from typing import Any

from simulator.plan import Chunk, Preemption, StepPlan, View
from simulator.policies.real.asked import Asked


class AskedSglang(Asked):
    """SGLang's scheduler of one replica. Its plans say too what its radix tree was asked, which evicts by last use."""

    def _plan(self, view: View, found: Mapping[str, Any]) -> StepPlan:
        requests, scheduled = self._by_id, found["scheduled"]
        victims = [requests[request_id] for request_id, _ in found["preempted"]]
        batch = [requests[request_id] for request_id in scheduled]
        prompts = [request for request in batch if not request.is_decoding]
        stay = [request for request in view.running if request not in victims] if victims else list(view.running)
        decoding = len(batch) - len(prompts)
        paused = []
        if decoding and decoding < view.num_decoding:
            paused = [request for request in stay if request.is_decoding and request.request_id not in scheduled]
        after = [*stay, *[request for request in prompts if request not in view.running]]
        # Prompts join the batch at its end; the decodes move only where SGLang has them in another order.
        place = after[-len(batch) :] if prompts else [request for request in after if request.request_id in scheduled]
        tried = found["tried"]
        self._note_computed(view, found)
        return StepPlan(
            preempt=tuple([Preemption(request) for request in victims]),
            prefill=tuple([Chunk(request, scheduled[request.request_id]) for request in prompts]),
            decode=decoding > 0,
            paused=tuple(paused),
            tried=None if tried is None else tuple([requests[request_id] for request_id in tried]),
            to_end=() if place == batch else tuple(batch),
            withheld=found["withheld"],
        )
