"""The autoscaled groups of a fleet: the lives of their replicas, and the limits that their requests met."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, nan

from simpy.events import Event

from simulator.engine.clock import Clock, then
from simulator.engine.replica import Replica
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import Autoscaling, ReplicaGroup, Seen, Stabilized, proposal
from simulator.fleet.router import Replicas
from simulator.metrics.latency import Slo
from simulator.request_state import RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import Status

# Tells, as a request ends, if it met the limits of its class: an autoscaler's view of an SLO.


def _tpot(live: RequestState) -> float:
    gaps = live.base_outputs - 1
    return (live.last_token_s - live.first_token_s) / gaps if gaps else 0.0


SECONDS: dict[str, Callable[[RequestState], float]] = {
    "ttft": lambda live: live.first_token_s - live.arrival_s,
    "tpot": _tpot,
    "e2el": lambda live: live.last_token_s - live.arrival_s,
    "queue_time": lambda live: live.scheduled_s - live.arrival_s,
}
"""Latencies of a finished request as its server sees them; `itl` is not among them: single gaps are not kept."""


def within_limits(slo: Slo, live: RequestState) -> bool:
    """True if a finished request met its limits on the latencies of `SECONDS`."""
    limits = slo.per_request(live.class_name)
    return all(SECONDS[name](live) <= limit_ms / 1e3 for name, limit_ms in limits.items() if name in SECONDS)


# The replicas of an autoscaled group: started, ready, draining, gone.
#
# A replica that starts takes no request until it is ready. One that drains takes no new one and is gone when it is
# empty; it is not called back, as a pod in termination is not. Of those to go the ones that are still starting come
# first, then those that became ready last, as Kubernetes deletes the pods of a ReplicaSet (unready before ready,
# younger before older). A router sees the ready ones only.


@dataclass(slots=True)
class Life:
    """A replica from its start to its end; NaN where that has not come."""

    replica: Replica
    start_s: float
    ready_s: float
    drain_s: float = nan
    end_s: float = nan

    def is_ready(self, now_s: float) -> bool:
        """True if the replica takes requests."""
        return self.ready_s <= now_s and self.drain_s != self.drain_s


class Lives:
    """Scales one group. `evaluations` is its SimPy process; `replicas` are all that the group can have."""

    def __init__(
        self,
        clock: Clock,
        rule: Autoscaling,
        replicas: Sequence[Replica],
        initial: int,
        seen: Replicas,
        recorder: Recorder,
        meets_slo: Callable[[RequestState], bool] | None,
    ) -> None:
        self._clock = clock
        self._rule = rule
        self._stabilized = Stabilized(rule)
        self._seen = seen
        self._recorder = recorder
        self._meets_slo = meets_slo
        self._idle = list(replicas[initial:])[::-1]  # the next to start last
        self._present = [Life(replica, 0.0, 0.0) for replica in replicas[:initial]]
        self._gone: list[Life] = []
        self._numbers = {replica.index for replica in replicas}
        self._ended = self._attained = 0
        for replica in self._idle:
            seen.take_out(replica.index)

    def request_ended(self, live: RequestState, replica: int, status: Status) -> None:
        """A request has ended at a replica: of this group or another."""
        if replica in self._numbers and self._meets_slo is not None:
            self._ended += 1
            self._attained += status is Status.FINISHED and self._meets_slo(live)

    def evaluations(self) -> Generator[Event, object, None]:
        """Look at every multiple of the interval, before the decisions of its moment, while anything can happen."""
        clock, tick = self._clock, 0
        while clock.has_events:
            tick += 1
            yield clock.tick(tick * self._rule.interval_s)
            self._evaluate(clock.now)

    def _evaluate(self, now_s: float) -> None:
        self._bury()
        ready = [life.replica.load for life in self._present if life.is_ready(now_s)]
        staying = [life for life in self._present if life.drain_s != life.drain_s]
        waiting, kv = sum(load.num_waiting for load in ready), sum(load.kv_utilization for load in ready)
        proposed = proposal(self._rule, Seen(len(staying), waiting, kv, self._ended, self._attained))
        self._ended = self._attained = 0
        wanted = self._stabilized.wanted(now_s, len(staying), proposed)
        for _ in range(wanted - len(staying)):
            if self._idle:
                self._start(now_s)
        leaving = sorted(staying, key=lambda life: (life.ready_s, life.replica.index))[wanted:]
        for life in leaving:
            self._drain(life, now_s)

    def _start(self, now_s: float) -> None:
        life = Life(self._idle.pop(), now_s, now_s + self._rule.startup_s)
        self._present.append(life)
        then(self._clock.tick(life.ready_s), partial(self._welcome, life))

    def _welcome(self, life: Life) -> None:
        if life.drain_s != life.drain_s:
            life.replica.start_empty()
            self._seen.bring_in(life.replica.index)

    def _drain(self, life: Life, now_s: float) -> None:
        life.drain_s = now_s
        if life.replica.index in self._seen.by_number:
            self._seen.take_out(life.replica.index)

    def _bury(self) -> None:
        """Let the replicas go that have drained: each with its last step, or at once where it had nothing to do."""
        staying = []
        for life in self._present:
            if life.drain_s == life.drain_s and life.replica.load.num_unfinished == 0:
                life.end_s = max(life.drain_s, self._recorder.replicas[life.replica.index].end_s)
                self._gone.append(life)
                self._idle.append(life.replica)
            else:
                staying.append(life)
        self._present = staying
        self._idle.sort(key=lambda replica: -replica.index)

    def rows(self, run_end_s: float) -> list[tuple[float, ...]]:
        """All lives as rows of `LifeColumns`, by replica and start; what would come after the end of the run is not."""
        self._bury()
        found = []
        for life in sorted([*self._gone, *self._present], key=lambda life: (life.replica.index, life.start_s)):
            if life.start_s > run_end_s:
                continue
            times = [life.ready_s, life.drain_s, life.end_s]
            if not life.drain_s <= run_end_s:
                times[1:] = [nan, nan]
            if life.ready_s > min(run_end_s, times[1] if times[1] == times[1] else inf):
                times[0] = nan  # it was never ready
            found.append((life.replica.index, life.start_s, *times))
        return found


# The autoscaled groups of a fleet.


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
