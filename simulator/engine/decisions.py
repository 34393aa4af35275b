"""The decision log: one dictionary a step, also for steps that the engine folded or jumped over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from simulator.request_state import DECODING, RequestState

if TYPE_CHECKING:
    from simulator.engine.in_flight import InFlight
    from simulator.engine.state import ReplicaState


class DecisionLog:
    """Decisions of one replica, in the form of `decisions.jsonl`.

    `scheduled` counts the computed tokens of each request, without padding and without those of held requests.
    `dummy`, of ranks that run in waves: the rank computed a dummy batch. `held`, of a policy whose notes tell it:
    prompts were held back. `preempted_before`, where there are any: the victims of plans that computed nothing and so
    were no step.
    """

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.steps: list[dict[str, Any]] = []
        self._decided: dict[str, Any] = {}
        self._waiting: list[RequestState] = []
        self._admissions = 0  # up to the last decision
        self._planned_s = 0.0
        self._queue: list[RequestState] | None = None  # before requests were aborted with the step
        self._num_free = 0
        self._aborted: list[str] = []
        self.tells_dummies = False
        self._open: dict[str, Any] = {}  # the last step, while its results are still to come

    def decided(self, state: ReplicaState, step: InFlight, now_s: float) -> None:
        """The plan has been applied, at `now_s`."""
        self._planned_s = now_s
        chunks = {live: tokens - padding for live, tokens, padding in step.prefill}
        scheduled = {}
        for live in state.running:
            if live in chunks:
                if chunks[live]:
                    scheduled[live.request_id] = chunks[live]
            elif step.shape.decode_seqs and live.status is DECODING and not live.paused:
                scheduled[live.request_id] = 1
        plan = step.plan
        self._waiting = list(state.waiting)
        self._decided = {
            "scheduled": scheduled,
            "admitted": {
                live.request_id: live.num_computed_tokens for live in chunks if live.admission > self._admissions
            },
            "preempted": [p.request.request_id for p in plan.preempt],
            "swapped_out": [p.request.request_id for p in plan.preempt if p.swap],
            "swapped_in": [view.request_id for view in plan.resume],
            "running": [live.request_id for live in state.running],
        }
        if (held := getattr(plan.note, "held", None)) is not None:
            self._decided["held"] = held
        if (encoded := getattr(plan.note, "encoded", None)) is not None:
            self._decided |= {"encoded": encoded, "cache_free": plan.note.cache_free}  # type: ignore[attr-defined] # has both
        if state.adapters is not None:
            self._decided["adapters"] = sorted(state.adapters.running)
        if self.tells_dummies:
            self._decided["dummy"] = not step.shape.tokens
        if step.preempted_before:
            self._decided["preempted_before"] = [p.request.request_id for p in step.preempted_before]
        self._admissions = max([self._admissions, *[live.admission for live in chunks]])

    def dummy(self, state: ReplicaState, start_s: float, end_s: float) -> None:
        """A rank without anything to compute computes a dummy batch in a common step."""
        ids: dict[str, Any] = {"running": [live.request_id for live in state.running]}
        lists: dict[str, Any] = {key: [] for key in ("preempted", "swapped_out", "swapped_in")}
        decided = {"dummy": True, "scheduled": {}, "admitted": {}, **lists, **ids}
        self._add({"t_start_s": start_s, "t_end_s": end_s}, decided, state.waiting, state.blocks.num_free)
        self.known(state.blocks.num_free)

    def committed(self, state: ReplicaState, step: InFlight, used_blocks: list[int], done: list[RequestState]) -> None:
        """The step, or the run of steps, is over."""
        start_s = step.start_s
        decided = self._decided
        queue: Iterable[RequestState] = state.waiting if self._queue is None else self._queue
        for i, (end_s, used) in enumerate(zip(step.ends_s, used_blocks, strict=True)):
            if i == 1:
                # From here on the batch only decodes.
                decided = {**decided, "admitted": {}, "preempted": [], "swapped_out": [], "swapped_in": []}
                decided.pop("preempted_before", None)
            waiting = self._waiting if i == 0 else [live for live in queue if live.arrival_s <= start_s]
            times = {"t_start_s": start_s, "t_end_s": end_s}
            self._add(times, decided, waiting, state.blocks.num_blocks - used)
            start_s = end_s
        self.known(state.blocks.num_free, done)
        self.tell_aborted()

    def committed_late(
        self, state: ReplicaState, step: InFlight, used_blocks: list[int], left: list[RequestState], freed: int
    ) -> None:
        """As `committed`, for asynchronous scheduling: the steps are planned, and their results are still to come.

        `left` are the requests that finished with the step before, and `freed` the blocks that came free with them.
        """
        num_blocks = state.blocks.num_blocks
        start_s = step.start_s
        planned_s = self._planned_s
        decided = self._decided
        queue: Iterable[RequestState] = state.waiting
        if self._queue is not None:
            queue, freed = self._queue, state.blocks.num_free - self._num_free
        last = len(step.ends_s) - 1
        for i, (end_s, used) in enumerate(zip(step.ends_s, used_blocks, strict=True)):
            if i == 1:
                decided = {**decided, "admitted": {}, "preempted": []}
            waiting = self._waiting if i == 0 else [live for live in queue if live.arrival_s <= planned_s]
            self.known(num_blocks - used + (freed if i == last else 0), left)
            left = []
            times = {"t_schedule_s": planned_s, "t_start_s": start_s, "t_end_s": end_s}
            self._add(times, decided, waiting, num_blocks - used)
            planned_s, start_s = start_s, end_s
        self.tell_aborted()

    def _add(
        self, times: dict[str, float], decided: dict[str, Any], waiting: Iterable[RequestState], num_free_blocks: int
    ) -> None:
        """Add a step, whose results are still to come: see `known`."""
        self._open = {
            "replica": self.replica,
            "step": len(self.steps),
            **times,
            **{key: copy(value) for key, value in decided.items()},
            "finished": [],
            "waiting": [live.request_id for live in waiting],
            "num_free_blocks": num_free_blocks,
            "num_free_blocks_end": num_free_blocks,
        }
        self.steps.append(self._open)

    def aborts(self, state: ReplicaState, request_ids: list[str]) -> None:
        """These requests are about to leave, as they were aborted; `tell_aborted` follows."""
        self._queue = list(state.waiting)
        self._num_free = state.blocks.num_free
        self._aborted = request_ids

    def tell_aborted(self) -> None:
        """Name in the last step the requests that were aborted since it was planned; before the first, in none."""
        if self._aborted and self.steps:
            self.steps[-1].setdefault("aborted", []).extend(self._aborted)
        self._queue, self._aborted = None, []

    def known(self, num_free_blocks: int, left: Sequence[RequestState] = ()) -> None:
        """The results of the last step are there: these requests left with them."""
        self._open["finished"] = [live.request_id for live in left]
        self._open["num_free_blocks_end"] = num_free_blocks
        self._open = {}
