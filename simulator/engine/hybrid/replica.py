"""A replica whose layers keep different things of a request: all tokens, a window, a chunk, a state.

The order of a step is that of every replica. The memory is `simulator.memory.grouped`, and the policy asks it through
`View.groups`. A run of decode steps is jumped over only as far as no request of the batch takes or frees a block: the
next step in which one does is planned by itself.
"""

from simulator.engine.hybrid.apply import GroupPlans
from simulator.engine.hybrid.view import GroupsView
from simulator.engine.in_flight import InFlight
from simulator.engine.replica import Replica
from simulator.engine.replica_parts import ReplicaParts
from simulator.errors import InputError
from simulator.memory.grouped import GroupedBlocks
from simulator.policy_traits import Traits
from simulator.request import RequestView
from simulator.request_state import DECODING, LEAVING, RequestState


class GroupedReplica(Replica):
    """A `Replica` with a memory of several KV groups. InputError for a policy that does not plan with it."""

    def __init__(self, parts: ReplicaParts) -> None:
        blocks, policy = parts.blocks, type(parts.policy)
        if not isinstance(blocks, GroupedBlocks):
            raise TypeError(f"a replica with KV groups has GroupedBlocks, not {type(blocks).__name__}")
        if not Traits.of(policy).asks_groups:
            what = f"the policy {policy.__name__} does not plan with layers that keep different things"
            raise InputError(what, hint="engine.policy: vllm, or engine.disable_hybrid_kv_cache_manager: true")
        super().__init__(parts)
        if self.state.traits.prefill_schedule_interval > 1:
            what = "layers that keep different things do not go with prefill_schedule_interval yet"
            raise InputError(what, hint="engine.disable_hybrid_kv_cache_manager: true")
        self._blocks = blocks
        self._plans = GroupPlans(self.state, self._viewer, blocks)
        self._in_order = self._plans.apply
        self._sampling: dict[RequestState, int] = {}  # the requests of the step whose results come next
        self._view.groups = GroupsView(self.state, self._plans)
        self.completion.forget = blocks.end
        self._refuses = self.state.refuses
        self.state.refuses = self._refusal

    def _refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request could never be served with so many blocks."""
        whole = request.input_tokens + self.state.requests[request.row].output_tokens - 1
        if (reason := self._blocks.refusal(whole)) is not None:
            return reason
        return None if self._refuses is None else self._refuses(request, num_blocks, block_size)

    def begin_step(self, now_s: float) -> InFlight | None:
        """Ask for a plan and apply it; None if it neither changes nor computes anything."""
        step = super().begin_step(now_s)
        if self._overlaps:
            self._sampling, in_flight = self._plans.in_flight, {}
            if step is not None:
                if step.decode_seqs:
                    in_flight.update(dict.fromkeys(self.state.decoders(), 1))
                in_flight.update({live: tokens for live, tokens, _ in step.prefill})
            self._plans.in_flight = in_flight
        return step

    def finish_step(self, step: InFlight) -> None:
        """Commit the steps; with asynchronous scheduling, the results are those of the step before."""
        for live in self._sampling:
            if live.status in (DECODING, LEAVING):
                self._plans.enter(live)
        self._sampling = {}
        super().finish_step(step)
