"""Plans with a connector applied: admissions may load KV, and loads that have ended are settled in their turn."""

from typing import Final

from simulator.connector import Found
from simulator.division import cdiv
from simulator.engine.connector.protocol import Connector
from simulator.engine.connector.request import ConnectedRequest
from simulator.engine.speculative.apply import DraftedPlans
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.plan import Chunk, StepPlan
from simulator.queues.priority import rank
from simulator.request import RequestView
from simulator.request_state import LOADING, WAITING
from simulator.speculative.config import SpeculativeConfig

NO_DRAFTS: Final = SpeculativeConfig("ngram", 0)


class Holding:
    """Requests that hold blocks for a load: a `ConnectorView` of a replica and its connector."""

    __slots__ = ("_connector", "_requests", "by_priority", "lives", "owners")

    def __init__(self, state: ReplicaState, connector: Connector) -> None:
        self._connector = connector
        self._requests = state.requests
        self.by_priority = state.traits.order == "priority"
        self.lives: dict[ConnectedRequest, None] = {}
        self.owners: dict[int, ConnectedRequest] = {}  # by row, those that hold or held blocks

    @property
    def holding(self) -> list[ConnectedRequest]:
        """See `ConnectorView.holding`."""
        return sorted(self.lives, key=rank) if self.by_priority else list(self.lives)

    def look(self, request: RequestView, computed_tokens: int) -> Found | None:
        """See `ConnectorView.look`."""
        assert isinstance(request, ConnectedRequest)
        return self._connector.look(self._requests[request.row], request, computed_tokens)

    def is_loading(self, request: RequestView) -> bool:
        """See `ConnectorView.is_loading`."""
        return isinstance(request, ConnectedRequest) and request.is_loading

    def is_settled(self, request: RequestView) -> bool:
        """See `ConnectorView.is_settled`."""
        return isinstance(request, ConnectedRequest) and request.is_settled

    def is_fenced(self, request: RequestView) -> bool:
        """See `ConnectorView.is_fenced`."""
        return self._connector.is_fenced and isinstance(request, ConnectedRequest) and request.in_flight_tokens > 0


class ConnectedPlans(DraftedPlans):
    """Applies the plans of one replica with a connector."""

    __slots__ = ("_connector", "_held", "external")

    def __init__(
        self, state: ReplicaState, viewer: Viewer, max_model_len: int, connector: Connector, held: Holding
    ) -> None:
        super().__init__(state, viewer, NO_DRAFTS, max_model_len)
        self._connector = connector
        self._held = held
        self.external: dict[str, int] = {}  # tokens found by the connector, of the requests that the step admits

    def _next_part(self, before: StepPlan, now_s: float) -> StepPlan:
        """Ask for the next part and apply it."""
        state, viewer = self._state, self._viewer
        view = viewer.view
        view.note = before.note
        viewer.look_again(sum([part.tokens for part in self.scheduled]), (), decodes=False)
        plan: object = state.policy.plan(view)
        if not isinstance(plan, StepPlan) or plan.preempt or plan.resume or plan.paused:
            raise state.broken(f"continues with {plan!r}; later parts may only admit requests")
        if plan.more and not (plan.prefill or plan.tried):
            raise state.broken("sets more=True but admits nothing")
        for request in plan.tried or ():
            self._settle(request)
        for chunk in plan.prefill:
            self._admit(chunk, now_s)
        return plan

    def _settle(self, view: RequestView) -> None:
        """A load has ended: its blocks enter the prefix cache, or are given back if it failed."""
        live, state = view, self._state
        if not isinstance(live, ConnectedRequest) or live not in self._held.lives or live.is_loading:
            raise state.broken(f"settles {view!r}, which holds no load that has ended")
        live.is_settled = True
        if live.load_failed:
            live.load_failed = False
            state.blocks.free(live.row, live.num_blocks)
            live.base_computed = live.reserved_tokens = live.external_tokens = 0
            return
        self.enter(live, live.base_computed)
        if live.base_computed == live.num_tokens:
            live.base_computed -= 1  # so that it samples
            live.external_tokens -= 1
        _count_found(live, live.external_tokens)

    def _admit(self, chunk: Chunk, now_s: float) -> None:
        live, state, cache, groups = chunk.request, self._state, self._cache, self.groups
        held = isinstance(live, ConnectedRequest) and live in self._held.lives
        if not isinstance(live, ConnectedRequest) or not (live.status is WAITING or (held and live.is_settled)):
            raise state.broken(f"admits {live!r}, which neither waits nor has its load")
        if live.num_blocks:
            self._run(live, chunk.num_tokens, now_s)
            return
        request = state.requests[live.row]
        if groups is not None:
            hit = groups.blocks.hit(request, live.num_tokens)
            local = hit.tokens
        else:
            assert cache is not None
            hits, _ = cache.hits(request, live.num_tokens)
            local = hits * state.batch.block_size
        found = self._connector.look(request, live, local)
        if found is None or found.later == bool(chunk.num_tokens):
            raise state.broken(f"computes {chunk.num_tokens} tokens of {live.request_id}, of which it found {found}")
        live.base_computed, live.external_tokens = local + found.tokens, found.tokens
        if found.tokens:
            self.external[live.request_id] = found.tokens
        if groups is not None:
            groups.blocks.admit(groups.asked(live, live.base_computed, chunk.num_tokens, found.tokens), hit)
        else:
            assert cache is not None
            cache.take_hits(request, hits)
            self._take_found(live, local)
        live.reserved_tokens = live.base_computed
        self._held.owners[live.row] = live
        if found.later:
            self._hold(live)
        else:
            _count_found(live, found.tokens)
            self._run(live, chunk.num_tokens, now_s)
        self._connector.admitted(request, live, found, local)

    def _hold(self, live: ConnectedRequest) -> None:
        """Let a request wait for its load, outside queue and batch."""
        if live not in self._held.lives:
            self._state.waiting.remove(live)
            self._held.lives[live] = None
        live.status = LOADING
        live.is_loading, live.is_settled = True, False

    def _run(self, live: ConnectedRequest, tokens: int, now_s: float) -> None:
        state = self._state
        if live in self._held.lives:
            del self._held.lives[live]
        else:
            state.waiting.remove(live)
        state.admit(live, now_s)
        if not tokens:
            raise state.broken(f"admits request {live.request_id} and computes nothing of it")
        part = self._schedule(live, tokens, now_s)
        part.admitted = True
        self.scheduled.append(part)

    def _take_found(self, live: ConnectedRequest, local_tokens: int) -> None:
        """Take the blocks of what is to be loaded, behind those of the prefix hit; no victim gives them."""
        blocks, size = self._state.blocks, self._state.batch.block_size
        needed = cdiv(live.base_computed, size) - cdiv(local_tokens, size)
        if needed > blocks.num_free:
            what = f"loads {needed} blocks for request {live.request_id}; {blocks.num_free} are free"
            raise self._state.broken(what)
        if needed:
            blocks.allocate(live.row, needed)


def _count_found(live: ConnectedRequest, external_tokens: int) -> None:
    """Count what need not be computed, of prefix hits and loads: a part of it may have been before a preemption."""
    setbacks = live.set_back()
    local = live.base_computed - external_tokens
    setbacks.cached_tokens += min(local, live.input_tokens)
    setbacks.external_tokens += external_tokens
    found_again = min(live.base_computed, live.lost_tokens)
    setbacks.recomputed_tokens -= found_again
    setbacks.skipped_tokens += live.base_computed - found_again
    live.lost_tokens = 0
