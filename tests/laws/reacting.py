"""Clients that react: they give up, and send what they have left when a request of theirs ends. All by a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from simulator.fleet.group import ReplicaGroup
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.request import Request
from simulator.results.records import Cause, Status
from simulator.simulate import Run
from simulator.timing.cost import GroupCost
from simulator.workload import Workload
from tests.laws.scenarios import Scenario
from tests.listening import Inlet, simulate_listening

End = tuple[int, Status, float, Cause | None]


@dataclass(frozen=True, slots=True)
class FirstOnes(Workload):
    """A workload of which only the first requests arrive of themselves."""

    first: int = 0

    def requests(self) -> Iterator[Request]:
        for request in Workload.requests(self):
            if request.row < self.first:
                yield request


@dataclass(slots=True)
class Script:
    """What the clients do: `aborts` at fixed times, and follow-ups.

    The ends are numbered as they are told; end i of the first `len(follow_ups)` makes the next request arrive after
    `follow_ups[i][0]` seconds, whose client gives up `follow_ups[i][1]` seconds later (None: never).
    """

    aborts: list[tuple[int, float]]
    follow_ups: list[tuple[float, float | None]] = field(default_factory=list)
    first: int | None = None  # requests that arrive of themselves; None: all
    max_queued_requests: int | None = None

    def run(
        self,
        scenario: Scenario,
        *,
        fast_forward: bool = True,
        make_blocks: Callable[[int, int], KVBlocks] = BlockLedger,
        log_decisions: bool = True,
        group_cost: GroupCost | None = None,
    ) -> tuple[Run, list[End]]:
        """The run, and the ends as they were told."""
        workload = scenario.workload
        if self.first is not None:
            columns = {name: getattr(workload, name) for name in Workload.__dataclass_fields__}
            workload = FirstOnes(**columns, first=self.first)
        clients = _Clients(self, list(Workload.requests(workload)))
        group = ReplicaGroup(
            scenario.new_policy,
            scenario.memory,
            scenario.cost,
            scenario.swap_s_per_block,
            scenario.swap_overlap,
            group_cost,
            make_blocks=make_blocks,
            replicas=scenario.replicas,
            max_queued_requests=self.max_queued_requests,
        )
        run = simulate_listening(
            workload,
            [group],
            clients.listen,
            router=scenario.router,
            fast_forward=fast_forward,
            log_decisions=log_decisions,
        )
        return run, clients.ends


class _Clients:
    def __init__(self, script: Script, requests: list[Request]) -> None:
        self.ends: list[End] = []
        self._script = script
        self._coming = iter(requests[len(requests) if script.first is None else script.first :])
        self._inlet: Inlet | None = None

    def listen(self, inlet: Inlet) -> _Clients:
        self._inlet = inlet
        for row, at_s in self._script.aborts:
            inlet.abort_at(row, at_s)
        return self

    def __call__(self, row: int, status: Status, end_s: float, cause: Cause | None) -> None:
        number = len(self.ends)
        self.ends.append((row, status, end_s, cause))
        if number >= len(self._script.follow_ups):
            return
        think_s, patience_s = self._script.follow_ups[number]
        request = next(self._coming, None)
        if request is not None:
            assert self._inlet is not None
            self._inlet.submit_at(request._replace(arrival_s=end_s + think_s))
            if patience_s is not None:
                self._inlet.abort_at(request.row, end_s + think_s + patience_s)


@st.composite
def scripts(draw: st.DrawFn, scenario: Scenario, *, follows: bool = True) -> Script:
    """Aborts at arrivals, at ends of steps, and between; in about half of the scripts requests follow ends."""
    count = len(scenario.workload)
    ends_s = np.unique(scenario.run().records.step_end_s)
    moments = [*scenario.workload.arrival_s.tolist(), *ends_s.tolist()]
    moments += [(a + b) / 2 for a, b in zip(ends_s.tolist(), ends_s[1:].tolist(), strict=False)]
    rows = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count))
    aborts = [(row, draw(st.sampled_from(moments))) for row in rows]
    queued = draw(st.sampled_from([None, None, 1, 2, 4]))
    if not follows or draw(st.booleans()):
        return Script(aborts, max_queued_requests=queued)
    step_s = float(ends_s[0]) if len(ends_s) else 0.005
    waits_s = st.sampled_from([0.0, 0.0, step_s, step_s / 2, 0.0173, 1.0])
    follow_ups = draw(st.lists(st.tuples(waits_s, st.sampled_from([None, 0.0, step_s, 0.1])), max_size=count))
    return Script(aborts, follow_ups, draw(st.integers(1, count)), queued)
