"""The autoscaled groups of a fleet."""

from collections.abc import Callable, Sequence
from functools import partial

from simulator.engine.clock import Clock
from simulator.fleet.attainment import within_limits
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.lives import Lives
from simulator.fleet.replicas import Replicas
from simulator.metrics.slo import Slo
from simulator.request_state import RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import Status


class Scaling:
    """Starts the autoscalers of the groups that have one. `seen` is what the router chooses from."""

    def __init__(
        self,
        clock: Clock,
        groups: Sequence[ReplicaGroup],
        fleet: Fleet,
        seen: Replicas,
        recorder: Recorder,
        slo: Slo | None,
    ) -> None:
        self._recorder = recorder
        self._always: list[int] = []
        self._all: list[Lives] = []
        meets: Callable[[RequestState], bool] | None = None if slo is None else partial(within_limits, slo)
        first = 0
        for group in groups:
            numbers = range(first, first + group.replicas)
            first += group.replicas
            rule = group.autoscaling
            if rule is None:
                self._always += numbers
                continue
            replicas = fleet.replicas[numbers.start : numbers.stop]
            lives = Lives(clock, rule, replicas, group.initial_replicas, seen, recorder, meets)
            clock.process(lives.evaluations())
            self._all.append(lives)
        if self._all and meets is not None:
            recorder.watch(self._request_ended)

    def _request_ended(self, live: RequestState, replica: int, status: Status) -> None:
        for lives in self._all:
            lives.request_ended(live, replica, status)

    def record(self, run_end_s: float) -> None:
        """Put what replicas there were into the records, unless all were there all the time."""
        if not self._all:
            return
        nan = float("nan")
        rows: list[tuple[float, ...]] = [(number, 0.0, 0.0, nan, nan) for number in self._always]
        for lives in self._all:
            rows += lives.rows(run_end_s)
        for row in sorted(rows, key=lambda row: row[:2]):
            self._recorder.lives.add(row)
