"""A KV connector as a part of the itemized engine, which steps on though nothing is computed while copies go on.

Its places in a step: admissions may load KV, and loads that have ended are settled in their turn; once the plan is
applied it is decided what is stored; copies begin before and behind the step on the device. With the results come, in
this order, blocks that the step wrote free, tokens, transfers (`Scheduler.update_from_output`, vLLM 0.33). The loop is
that of `EngineCore` in vllm/v1/engine/core.py: up to two steps are in flight with asynchronous scheduling, those
without tokens too, and a short sleep follows a step without tokens, which no arrival ends.
"""

from collections import deque
from collections.abc import Collection
from typing import Final, cast

from simulator.engine.itemized import ItemizedReplica, Part
from simulator.engine.itemized_step import ItemizedRequest, ItemizedStep
from simulator.engine.parts.connected_memory import ConnectedBlocks, MakeConnector
from simulator.engine.parts.connector import Arrivals, ConnectedGroups, Connector
from simulator.engine.replica import ReplicaParts
from simulator.errors import InputError
from simulator.plan import Chunk
from simulator.queues.priority import rank
from simulator.request import RequestView
from simulator.request_state import FINISHED, LOADING, WAITING, RequestState
from simulator.results.records import Status
from simulator.speculative import Found

_IDLE_S: Final = 0.001  # core.py:1690


class Holding:
    """Requests that hold blocks for a load: a `ConnectorView` of a replica and its connector."""

    __slots__ = ("_by_priority", "_connector", "_requests", "lives", "owners")

    def __init__(self, replica: ItemizedReplica, connector: Connector) -> None:
        self._connector = connector
        self._requests = replica.state.requests
        self._by_priority = replica.state.traits.order == "priority"
        self.lives: dict[ItemizedRequest, None] = {}
        self.owners: dict[int, ItemizedRequest] = {}  # by row, those that hold or held blocks

    @property
    def holding(self) -> list[ItemizedRequest]:
        """See `ConnectorView.holding`."""
        return sorted(self.lives, key=rank) if self._by_priority else list(self.lives)

    def look(self, request: RequestView, computed_tokens: int) -> Found | None:
        """See `ConnectorView.look`."""
        assert isinstance(request, ItemizedRequest)
        return self._connector.look(self._requests[request.row], request, computed_tokens)

    def is_loading(self, request: RequestView) -> bool:
        """See `ConnectorView.is_loading`."""
        return isinstance(request, ItemizedRequest) and request.is_loading

    def is_settled(self, request: RequestView) -> bool:
        """See `ConnectorView.is_settled`."""
        return isinstance(request, ItemizedRequest) and request.is_settled

    def is_fenced(self, request: RequestView) -> bool:
        """See `ConnectorView.is_fenced`."""
        return self._connector.is_fenced and isinstance(request, ItemizedRequest) and request.in_flight_tokens > 0


class Connected(Part):
    """The part of a replica with the connector that `make_connector` makes."""

    def __init__(self, make_connector: MakeConnector) -> None:
        self._make_connector = make_connector

    def checks(self, parts: ReplicaParts) -> None:
        blocks = parts.blocks
        if not isinstance(blocks, (ConnectedBlocks, ConnectedGroups)):
            raise InputError(f"a replica with a KV connector needs ConnectedBlocks, not {type(blocks).__name__}")
        self._parts = parts
        self._blocks = blocks

    def joins(self, replica: ItemizedReplica) -> None:
        self._replica = replica
        self._state = replica.state
        self._connector = replica.connector = self._make_connector(self._blocks, replica.overlaps)
        self._connector.record(self._parts.number, self._parts.recorder.copies.add)
        self._held = replica.holding = Holding(replica, self._connector)
        self._external: dict[str, int] = {}  # tokens found by the connector, of the requests that the step admits
        self._arrivals: deque[Arrivals] = deque()  # of the steps in flight
        self._arrived = Arrivals()
        self._failed: list[ItemizedRequest] = []
        self._now_s = 0.0  # of the results
        self._ready_s = 0.0  # the workers
        self._launched = self._processed = 0  # steps that computed tokens
        self._fenced: deque[tuple[int, int]] = deque()  # of requests that ended: the step to wait for, and their row
        self._blocks.keeps = self._keeps
        replica.plans.admits, replica.plans.settles = self._admit, self._settle
        replica.taken_in.drops_stale = self._connector.drops_late
        replica.dropping.leaves = self._leaves
        replica.completion.ended = self._ended
        replica.queues_steps, replica.idle_s = True, _IDLE_S
        replica.depth = 2 if replica.overlaps else 1

    def outside(self) -> Collection[RequestState]:
        return self._held.lives

    def has_work(self) -> bool:
        return bool(self._held.lives or self._blocks.kept or self._connector.has_work)

    # The plan

    def before_plan(self, now_s: float) -> None:
        self._connector.now_s = now_s
        self._external.clear()

    def _settle(self, view: RequestView) -> None:
        """A load has ended: its blocks enter the prefix cache, or are given back if it failed."""
        live, state = view, self._state
        if not isinstance(live, ItemizedRequest) or live not in self._held.lives or live.is_loading:
            raise state.broken(f"settles {view!r}, which holds no load that has ended")
        live.is_settled = True
        if live.load_failed:
            live.load_failed = False
            state.blocks.free(live.row, live.num_blocks)
            live.base_computed = live.reserved_tokens = live.external_tokens = 0
            return
        self._replica.plans.memory.enter(live, live.base_computed)
        if live.base_computed == live.num_tokens:
            live.base_computed -= 1  # so that it samples
            live.external_tokens -= 1
        _count_found(live, live.external_tokens)

    def _admit(self, chunk: Chunk, now_s: float) -> None:
        live, state, memory = chunk.request, self._state, self._replica.plans.memory
        held = isinstance(live, ItemizedRequest) and live in self._held.lives
        if not isinstance(live, ItemizedRequest) or not (live.status is WAITING or (held and live.is_settled)):
            raise state.broken(f"admits {live!r}, which neither waits nor has its load")
        if live.num_blocks:
            self._run(live, chunk.num_tokens, now_s)
            return
        request, local = state.requests[live.row], memory.look(live)
        found = self._connector.look(request, live, local)
        if found is None or found.later == bool(chunk.num_tokens):
            raise state.broken(f"computes {chunk.num_tokens} tokens of {live.request_id}, of which it found {found}")
        live.base_computed, live.external_tokens = local + found.tokens, found.tokens
        if found.tokens:
            self._external[live.request_id] = found.tokens
        memory.admit(live, chunk.num_tokens, found.tokens)
        live.reserved_tokens = live.base_computed
        self._held.owners[live.row] = live
        if found.later:
            self._hold(live)
        else:
            _count_found(live, found.tokens)
            self._run(live, chunk.num_tokens, now_s)
        self._connector.admitted(request, live, found, local)

    def _hold(self, live: ItemizedRequest) -> None:
        """Let a request wait for its load, outside queue and batch."""
        if live not in self._held.lives:
            self._state.waiting.remove(live)
            self._held.lives[live] = None
        live.status = LOADING
        live.is_loading, live.is_settled = True, False

    def _run(self, live: ItemizedRequest, tokens: int, now_s: float) -> None:
        state = self._state
        if live in self._held.lives:
            del self._held.lives[live]
        else:
            state.waiting.remove(live)
        state.admit(live, now_s)
        if not tokens:
            raise state.broken(f"admits request {live.request_id} and computes nothing of it")
        self._replica.plans.admitted(live, tokens, now_s)

    def scheduled(self, step: ItemizedStep) -> None:
        victims = [cast("ItemizedRequest", preemption.request) for preemption in step.plan.preempt]
        self._connector.planned([(part.live, part.tokens) for part in step.scheduled], victims)
        step.is_wait = not step.scheduled

    # The device

    def ready_s(self, ready_s: float, busy_until_s: float) -> float:
        self._ready_s = self._connector.before(max(ready_s, self._ready_s), busy_until_s)
        return self._ready_s

    def queued(self, step: ItemizedStep) -> None:
        self._arrivals.append(self._connector.after(self._ready_s, step.ends_s[-1]))
        self._launched += bool(step.scheduled)

    def logged(self, step: ItemizedStep) -> None:
        """Add what the step's admissions found elsewhere, and whose loads go on between steps."""
        assert step.record is not None
        external = dict(self._external)
        scheduled = {part.live.request_id for part in step.scheduled}
        loading = [name for name in external if name not in scheduled]
        step.record |= {"external": external, "loading": loading, **self._connector.told()}

    # The results

    def before_results(self, step: ItemizedStep) -> None:
        self._now_s = self._parts.clock.now
        self._arrived = self._arrivals.popleft()
        if step.scheduled:
            self._processed += 1
            while self._fenced and self._fenced[0][0] <= self._processed:
                self._release(self._fenced.popleft()[1], fenced=True)
        owners = self._held.owners
        self._failed = [owners[row] for row in self._arrived.failed if owners[row].status is LOADING]

    def results(self, step: ItemizedStep) -> bool:
        arrivals, owners, blocks = self._arrived, self._held.owners, self._blocks
        for live in self._failed:
            live.load_failed = True
            if self._connector.fails_requests:
                del self._held.lives[live]
                blocks.free(live.row, live.num_blocks)  # they stay until the load is told of, below
                self._replica.completion.end(live, Status.ABORTED, self._now_s)
        self._connector.arrived(arrivals)
        if step.record is not None:
            ids = [sorted([owners[row].request_id for row in rows]) for rows in arrivals[:3]]
            step.record |= dict(zip(("received", "failed", "sent"), ids, strict=True))
        for row in arrivals.loaded:
            owners[row].is_loading = False
            if owners[row] not in self._held.lives:
                self._release(row)
        for row in arrivals.sent:
            self._release(row)
        if step.record is not None:
            step.record["num_free_blocks_end"] = blocks.num_free
        return any(arrivals)

    def _release(self, row: int, *, fenced: bool = False) -> None:
        self._blocks.release(row, fenced=fenced)
        del self._held.owners[row]

    def _keeps(self, row: int) -> bool:
        """Whether the blocks of a request that ends now stay: a step or a load writes them, or they are being sent."""
        live = self._held.owners[row]
        if live.status is FINISHED:
            self._replica.plans.memory.ends(live)
        if live.is_loading:
            return True
        if self._connector.is_fenced and live.in_flight_tokens:
            self._fenced.append((self._launched, row))
            return True
        return self._connector.keeps(live, self._now_s)

    # Ends

    def _leaves(self, live: ItemizedRequest) -> bool:
        """A request is aborted; returns whether it has left, as its load was under way."""
        self._replica.plans.memory.ends(live)
        if live.status is not LOADING:
            return False
        del self._held.lives[live]
        self._blocks.free(live.row, live.num_blocks)
        return True

    def _ended(self, row: int) -> None:
        self._connector.ended(row)
        if row not in self._blocks.kept:
            self._held.owners.pop(row, None)


def _count_found(live: ItemizedRequest, external_tokens: int) -> None:
    """Count what need not be computed, of prefix hits and loads: a part of it may have been before a preemption."""
    setbacks = live.set_back()
    local = live.base_computed - external_tokens
    setbacks.cached_tokens += min(local, live.input_tokens)
    setbacks.external_tokens += external_tokens
    found_again = min(live.base_computed, live.lost_tokens)
    setbacks.recomputed_tokens -= found_again
    setbacks.skipped_tokens += live.base_computed - found_again
    live.lost_tokens = 0
