"""The replicas of a run: group after group, numbered through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from simulator.engine.admission import NO_CAPS, Admission, ReplicaLoad
from simulator.engine.clock import Clock
from simulator.engine.completion import OnEnd
from simulator.engine.decisions import DecisionLog
from simulator.engine.intake import Intake
from simulator.engine.loop import DataParallelGroup, Loop, QueueLoop
from simulator.engine.replica import Replica, ReplicaParts
from simulator.errors import InputError
from simulator.fleet.group import ReplicaGroup, check_parts
from simulator.front_end import FirstTokens
from simulator.policy_traits import Traits
from simulator.results.recorder import Recorder
from simulator.results.records import GroupSizes

if TYPE_CHECKING:
    from simulator.engine.itemized import Drafter, ItemizedReplica
    from simulator.memory.grouped import GroupedBlocks
    from simulator.speculative import Speculation


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
        made = []
        for index in range(first, first + group.replicas):
            parts = ReplicaParts(
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
            made.append(self._put_together(group, parts))
        return made

    def _put_together(self, group: ReplicaGroup, parts: ReplicaParts) -> Replica:
        """A replica with the parts of its group: of the fast engine, unless a part wants its steps walked through.

        Modules of parts are imported where there are such parts.
        """
        if group.speculation is None and group.connector is None and group.pipeline is None:
            replica = Replica(parts)
            if group.has_kv_groups:
                from simulator.engine.parts.groups import plan_with_groups

                plan_with_groups(replica, cast("GroupedBlocks", parts.blocks))
            return replica
        from simulator.engine.itemized import Drafter, ItemizedReplica, Part

        features: list[Part] = []
        if group.has_kv_groups:
            from simulator.engine.parts.groups import Groups

            features.append(Groups())
        if group.connector is not None:
            from simulator.engine.parts.connected import Connected

            features.append(Connected(group.connector))
        if group.pipeline is not None:
            from simulator.engine.parts.pipeline import Pipeline

            features.append(Pipeline(group.pipeline))
        drafter = Drafter() if group.speculation is None else self._drafter(group, group.speculation, parts)
        return ItemizedReplica(parts, drafter, features)

    def _drafter(self, group: ReplicaGroup, speculation: Speculation, parts: ReplicaParts) -> Drafter:
        """What drafts in a replica, as its policy takes memory for it."""
        config = speculation.config
        takes_ahead = Traits.of(parts.policy).takes_ahead
        if group.role != "both":
            config = config.with_transfers()
        ranks = len(self.recorder.replicas) if self._one_server else group.replicas if group.group_cost else 1
        if ranks > 1:
            config = config.in_ranks()
        speculation = speculation._replace(config=config)
        if takes_ahead:
            from simulator.engine.parts.ahead import Ahead

            return Ahead(speculation)
        from simulator.engine.parts.drafts import Drafts

        return Drafts(speculation)

    def _drive(self, group: ReplicaGroup, replicas: list[Replica]) -> list[Intake]:
        """Start the processes that drive the replicas; returns where each takes its requests."""
        if group.group_cost is not None:
            clock = self.clocks[replicas[0].index]
            if group.speculation is None:
                together = DataParallelGroup(clock, replicas, group.group_cost)
            else:
                from simulator.engine.parts.drafts import draft_together, dummy_verify

                dummy = dummy_verify(group.speculation.config.num_speculative_tokens)
                together = DataParallelGroup(clock, replicas, group.group_cost, dummy, draft_together)
            clock.process(together.serve())
            return together.intakes
        intakes = []
        for replica in replicas:
            clock = self.clocks[replica.index]
            loop: Loop | QueueLoop
            if replica.queues_steps:
                loop = QueueLoop(clock, cast("ItemizedReplica", replica), fast_forward=self._fast_forward)
            else:
                loop = Loop(clock, replica, fast_forward=self._fast_forward)
            clock.process(loop.serve())
            intakes.append(loop.intake)
        return intakes
