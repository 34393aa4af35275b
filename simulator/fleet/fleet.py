"""The replicas of a run: group after group, numbered through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from simulator.engine.admission import NO_CAPS, Admission
from simulator.engine.clock import Clock
from simulator.engine.completion import OnEnd
from simulator.engine.decisions import DecisionLog
from simulator.engine.intake import Intake
from simulator.engine.loop import Loop
from simulator.engine.replica import Replica
from simulator.engine.replica_load import ReplicaLoad
from simulator.engine.replica_parts import ReplicaParts
from simulator.errors import InputError
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.group_parts import check_parts
from simulator.front_end import FirstTokens
from simulator.policy_traits import Traits
from simulator.results.recorder import Recorder
from simulator.results.records import GroupSizes

if TYPE_CHECKING:
    from simulator.engine.async_scheduling import AsyncLoop
    from simulator.engine.connector.loop import ConnectedLoop
    from simulator.engine.pipeline.batch_queue import BatchQueueLoop


class Fleet:
    """Replicas with the processes that drive them. `clocks`, `intakes` and `loads` have one entry a replica.

    `make_clock` is asked for the clock of each replica, which data-parallel ranks share. `first_tokens` is told of each
    request's, unless nothing lies between clients and engine. With `one_server` all replicas share its queue caps.
    """

    def __init__(
        self,
        make_clock: Callable[[], Clock],
        groups: Sequence[ReplicaGroup],
        recorder: Recorder,
        *,
        fast_forward: bool = True,
        log_decisions: bool = False,
        on_end: OnEnd | None = None,
        first_tokens: FirstTokens | None = None,
        one_server: bool = False,
    ) -> None:
        self._make_clock = make_clock
        self.recorder = recorder
        self.logs = [DecisionLog(index) for index in range(len(recorder.replicas))] if log_decisions else None
        self._fast_forward = fast_forward
        self._on_end = on_end
        self._one_server = one_server
        self.admission: Admission | None = None  # of all replicas, where they are one server
        self.first_tokens = first_tokens if first_tokens is not None and first_tokens.front_end else None
        self.replicas: list[Replica] = []
        self.clocks: list[Clock] = []
        self.intakes: list[Intake] = []
        self.groups: list[GroupSizes] = []
        for group in groups:
            self._add(group)

    @property
    def loads(self) -> list[ReplicaLoad]:
        """The replicas as routers see them."""
        return [replica.load for replica in self.replicas]

    def abandon(self) -> None:
        """The run is over: record the unfinished requests."""
        for replica in self.replicas:
            replica.abandon()

    def decisions(self) -> list[dict[str, Any]] | None:
        """The replicas' decisions by start of the step; None unless they are logged."""
        if self.logs is None:
            return None
        steps = [step for log in self.logs for step in log.steps]
        if len(self.logs) > 1:
            steps.sort(key=lambda step: (step["t_start_s"], step["replica"], step["step"]))
        return steps

    def _add(self, group: ReplicaGroup) -> None:
        """Make the replicas of a group and start what drives them."""
        made = self._make(group)
        state = made[0].state
        slots, streams = state.policy.max_num_seqs, state.traits.streams
        sizes = GroupSizes(group.name, len(made), group.usable_blocks, group.kv.block_size, slots, streams)
        if self.groups and self.groups[0].streams != streams:
            what = f"the groups {self.groups[0].name} and {group.name} differ in whether answers stream"
            raise InputError(f"{what}: there would be no common gaps between tokens")
        self.groups.append(sizes)
        for replica in made:
            replica.first_tokens = self.first_tokens
            replica.completion.admission = self._admission(group)
        self.replicas += made
        self.intakes += self._drive(group, made)

    def _admission(self, group: ReplicaGroup) -> Admission | None:
        """A replica's, which is its server's; None without caps."""
        caps = group.queue_caps
        if not self._one_server:
            return Admission(caps) if caps else None
        if len(self.groups) > 1 and caps != (NO_CAPS if self.admission is None else self.admission.caps):
            raise InputError(f"the group {group.name} has other caps on its queue than the rest of the one server")
        if self.admission is None and caps:
            self.admission = Admission(caps)
        return self.admission

    def _make(self, group: ReplicaGroup) -> list[Replica]:
        first, logs, make_executor = len(self.replicas), self.logs, group.executors()
        policies = list(islice(group.policies(), group.replicas))
        check_parts(group, policies[0])
        if group.group_cost is None:
            self.clocks += [self._make_clock() for _ in range(group.replicas)]
        else:
            self.clocks += [self._make_clock()] * group.replicas
        make: Callable[[ReplicaParts], Replica] = Replica
        if group.speculation is not None:
            ranks = len(self.recorder.replicas) if self._one_server else group.replicas if group.group_cost else 1
            make = partial(_speculative, group, ranks)
        if group.has_kv_groups and group.speculation is None:
            from simulator.engine.hybrid.replica import GroupedReplica

            make = GroupedReplica
        if group.connector is not None:
            from simulator.engine.connector.replica import ConnectedReplica

            make = partial(ConnectedReplica, group.connector)
        if group.pipeline is not None:
            from simulator.engine.pipeline.replica import PipelinedReplica

            make = partial(PipelinedReplica, group.pipeline)
        return [
            make(
                ReplicaParts(
                    index,
                    self.clocks[index],
                    policies[index - first],
                    group.make_blocks(group.usable_blocks, group.kv.num_host_blocks),
                    group.kv.block_size,
                    make_executor(),
                    self.recorder,
                    group.name,
                    fast_forward=self._fast_forward and group.group_cost is None,
                    decisions=None if logs is None else logs[index],
                    max_queued_requests=group.max_queued_requests,
                    on_end=self._on_end,
                )
            )
            for index in range(first, first + group.replicas)
        ]

    def _drive(self, group: ReplicaGroup, replicas: list[Replica]) -> list[Intake]:
        """Start the processes that drive the replicas; returns where each takes its requests."""
        if group.group_cost is not None:
            from simulator.engine.data_parallel import DataParallelGroup

            clock = self.clocks[replicas[0].index]
            drafts = 0 if group.speculation is None else group.speculation.config.num_speculative_tokens
            together = DataParallelGroup(clock, replicas, group.group_cost, drafts)
            clock.process(together.serve())
            return together.intakes
        intakes = []
        for replica in replicas:
            clock = self.clocks[replica.index]
            loop = _loop(group, clock, replica, fast_forward=self._fast_forward)
            clock.process(loop.serve())
            intakes.append(loop.intake)
        return intakes


def _loop(
    group: ReplicaGroup, clock: Clock, replica: Replica, *, fast_forward: bool
) -> Loop | AsyncLoop | BatchQueueLoop | ConnectedLoop:
    """What drives a replica, by the parts of its group. Modules of parts are imported where there are such parts."""
    if group.pipeline is not None:
        from simulator.engine.pipeline.batch_queue import BatchQueueLoop
        from simulator.engine.pipeline.replica import PipelinedReplica

        assert isinstance(replica, PipelinedReplica)
        return BatchQueueLoop(clock, replica, fast_forward=fast_forward)
    if group.connector is not None:
        from simulator.engine.connector.loop import ConnectedLoop
        from simulator.engine.connector.replica import ConnectedReplica

        assert isinstance(replica, ConnectedReplica)
        return ConnectedLoop(clock, replica, fast_forward=fast_forward)
    if replica.late is None:
        return Loop(clock, replica, fast_forward=fast_forward)
    from simulator.engine.async_scheduling import AsyncLoop

    return AsyncLoop(clock, replica, replica.late, fast_forward=fast_forward)


def _speculative(of: ReplicaGroup, ranks: int, parts: ReplicaParts) -> Replica:
    """A replica that drafts, as its policy takes memory for it; one of so many `ranks` of a server."""
    from simulator.engine.speculative.ahead_replica import AheadReplica
    from simulator.engine.speculative.replica import SpeculativeReplica

    assert of.speculation is not None
    config = of.speculation.config
    takes_ahead = Traits.of(parts.policy).takes_ahead
    if of.role != "both":
        config = config.with_transfers()
    if ranks > 1:
        config = config.in_ranks()
    make = AheadReplica if takes_ahead else SpeculativeReplica
    return make(of.speculation._replace(config=config), parts)
