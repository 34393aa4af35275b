"""The share of a fleet that one worker process has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.engine.clock import Clock
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.windows import LocalReplicas, Signal
from simulator.front_end import NO_FRONT_END, FirstTokens, FrontEnd
from simulator.results.recorder import Recorder
from simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class ShardReport:
    """A worker's answer after a window: how many requests have ended there, and its replicas' signals."""

    ended: int
    signals: list[Signal]


@dataclass(frozen=True, slots=True)
class ShardResults:
    """The results of a worker's replicas: their numbers, their records, and the decisions of each, if logged.

    First tokens are there if something lies between clients and engine.
    """

    numbers: Sequence[int]
    recorder: Recorder
    decisions: list[list[dict[str, Any]]] | None
    first_tokens: FirstTokens | None

    def bring_in(self, fleet: Fleet) -> None:
        """Put all of it where the fleet's own replicas would have put it."""
        fleet.recorder.take_over(self.recorder, self.numbers)
        if fleet.first_tokens is not None and self.first_tokens is not None:
            fleet.first_tokens.take_over(self.first_tokens)
        if fleet.logs is not None and self.decisions is not None:
            for number, steps in zip(self.numbers, self.decisions, strict=True):
                fleet.logs[number].steps = steps


class Shard:
    """A fleet of which only the replicas `numbers` are ever given a request; `workload` is the whole one."""

    def __init__(
        self,
        workload: Workload,
        groups: Sequence[ReplicaGroup],
        numbers: Sequence[int],
        *,
        log_decisions: bool,
        front_end: FrontEnd = NO_FRONT_END,
    ) -> None:
        self._workload = workload
        self._numbers = numbers
        recorder = Recorder(sum(group.replicas for group in groups))
        first_tokens = FirstTokens(front_end)
        self._fleet = Fleet(Clock, groups, recorder, log_decisions=log_decisions, first_tokens=first_tokens)
        self._host = LocalReplicas(self._fleet, numbers)

    def advance(self, rows: Sequence[int], numbers: Sequence[int], until_s: float) -> ShardReport:
        """Let the requests of these rows arrive at these replicas, and let happen all that comes before `until_s`."""
        self._give(rows, numbers)
        self._host.advance(until_s)
        return ShardReport(self._fleet.recorder.ended, list(self._host.look()))

    def finish(self, rows: Sequence[int], numbers: Sequence[int]) -> ShardResults:
        """Likewise, but all there is, and give away what there is to record."""
        self._give(rows, numbers)
        self._host.finish()
        self._fleet.abandon()
        logs = self._fleet.logs
        decisions = None if logs is None else [logs[number].steps for number in self._numbers]
        return ShardResults(self._numbers, self._fleet.recorder, decisions, self._fleet.first_tokens)

    @property
    def broken_s(self) -> float:
        """When a replica broke, in the time of the simulation."""
        return self._host.broken_s

    def _give(self, rows: Sequence[int], numbers: Sequence[int]) -> None:
        for request, number in zip(self._workload.requests_of(rows), numbers, strict=True):
            self._host.give(request, number)
