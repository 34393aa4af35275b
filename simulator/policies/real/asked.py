"""What a real scheduler is told of a replica, and its answers as plans."""

from collections.abc import Mapping
from typing import Any

from simulator.errors import InputError
from simulator.plan import Chunk, Preemption, StepPlan, View
from simulator.policies.real.process import EngineName, EngineProcess
from simulator.policies.real.settings import Memory, engine_settings
from simulator.policies.real.tokens import TokenBlocks
from simulator.request import Request, RequestView


class Asked:
    """The scheduler of one replica, started with the first plan; see `simulator.plan.Companion`.

    It is asked exactly once for each step. A step's results are told before the first plan that may know them: the
    next one, or with `depth` 2 (asynchronous scheduling) the one after.
    """

    def __init__(self, python: str, engine: EngineName, depth: int) -> None:
        self._python = python
        self._engine = engine
        self._depth = depth
        self._process: EngineProcess | None = None
        self._tokens: TokenBlocks | None = None
        self._arrived: list[tuple[Request, RequestView]] = []
        self._views: dict[int, RequestView] = {}  # the requests that the scheduler has, by row
        self._by_id: dict[str, RequestView] = {}
        self._in_flight = 0  # steps whose results it has not been told
        self._finished: list[str] = []
        self._aborted: list[str] = []
        self._computed: list[tuple[RequestView, int]] = []  # by those admitted in the last step, when it is over

    def arrived(self, request: Request, view: RequestView) -> None:
        """See `Companion`."""
        self._arrived.append((request, view))

    def ended(self, row: int, *, aborted: bool) -> None:
        """See `Companion`."""
        view = self._views.pop(row, None)
        if view is None:  # it came and went between two plans
            self._arrived = [(request, view) for request, view in self._arrived if request.row != row]
            return
        del self._by_id[view.request_id]
        (self._aborted if aborted else self._finished).append(view.request_id)

    def plan(self, view: View, policy: object, further: Mapping[str, object] | None) -> StepPlan:
        """The scheduler's plan. InputError where it finds another prefix in its cache than batchlab's cache has."""
        self._check_prefixes(view)
        told = self._told(view, policy, further)
        if told is None:
            return StepPlan()
        assert self._process is not None
        found = self._process.step(**told)
        if not told["plan"]:
            return StepPlan()
        self._in_flight += 1
        return self._plan(view, found)

    def _told(self, view: View, policy: object, further: Mapping[str, object] | None) -> dict[str, Any] | None:
        """What happened since the last plan; None if there is nothing to tell and nothing to plan."""
        if not (self._views or self._arrived or self._in_flight):
            return None
        if self._process is None:
            self._process = EngineProcess(self._python, self._engine)
            memory = Memory(view.num_blocks, view.block_size, view.caches_prefixes)
            self._process.start({**engine_settings(policy, memory, further), "brief": True})
            if view.caches_prefixes:
                self._tokens = TokenBlocks(view.block_size)
        # A server at rest has seen all results.
        settled = max(0, self._in_flight - self._depth + 1) if self._views else self._in_flight
        results: list[list[str]] = [[] for _ in range(settled)]
        if results:
            results[0], self._finished = self._finished, []
            self._in_flight -= settled
        aborted, self._aborted = self._aborted, []
        arrived = []
        for request, live in self._arrived:
            self._views[request.row] = self._by_id[request.request_id] = live
            arrived.append(told_request(request, self._tokens))
        self._arrived = []
        return {"aborted": aborted, "results": results, "arrived": arrived, "plan": bool(self._views)}

    def _plan(self, view: View, found: Mapping[str, Any]) -> StepPlan:
        requests, scheduled = self._by_id, found["scheduled"]
        preempt = tuple(
            [Preemption(requests[request_id], scheduled_tokens=given) for request_id, given in found["preempted"]]
        )
        victims = {preemption.request for preemption in preempt}
        chunks = [
            Chunk(requests[request_id], tokens)
            for request_id, tokens in scheduled.items()
            if not requests[request_id].is_decoding or requests[request_id] in victims
        ]
        paused: tuple[RequestView, ...] = ()
        if len(scheduled) - len(chunks) < view.num_decoding:
            paused = tuple(
                [
                    request
                    for request in view.running
                    if request.is_decoding and request.request_id not in scheduled and request not in victims
                ]
            )
        if view.caches_prefixes:
            admitted = found["admitted"]
            self._computed = [
                (requests[request_id], cached + scheduled[request_id]) for request_id, cached in admitted.items()
            ]
        return StepPlan(preempt=preempt, prefill=tuple(chunks), paused=paused)

    def _check_prefixes(self, view: View) -> None:
        """Hold the cached tokens of the last admissions against batchlab's own cache."""
        for request, tokens in self._computed:
            if request.row in self._views and request.num_computed_tokens != tokens:
                assert self._process is not None
                raise InputError(
                    f"{self._process.title} has computed or cached {tokens:,} tokens of request {request.request_id} "
                    f"at {round(view.now_s, 6)} s, and batchlab {request.num_computed_tokens:,}: their prefix caches "
                    "differ; the run goes on with enable_prefix_caching: false"
                )
        self._computed = []


def told_request(request: Request, tokens: TokenBlocks | None) -> dict[str, object]:
    """A request as `EngineProcess.step` takes it."""
    return {
        "id": request.request_id,
        "prompt_tokens": request.input_tokens,
        "max_tokens": request.max_tokens,
        "priority": request.priority,
        "blocks": [] if tokens is None else tokens.of(request),
    }
