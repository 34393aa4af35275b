"""Replicas on one clock behind a router: all of a run but its requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.engine.clock import Clock
from simulator.engine.completion import OnEnd
from simulator.fleet.dispatch import Dispatch
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.link import LinkSpeed
from simulator.fleet.roles import Roles, is_disaggregated
from simulator.fleet.router import Router, RouterFeatures
from simulator.fleet.scaling import Scaling
from simulator.fleet.signals import way_to
from simulator.front_end import FirstTokens
from simulator.metrics.slo import Slo
from simulator.results.recorder import Recorder
from simulator.results.records import Records
from simulator.workload import Workload

if TYPE_CHECKING:
    from simulator.fleet.disaggregation import Disaggregation
    from simulator.fleet.flow_control import FlowControl
    from simulator.fleet.gateway import Gateway


class Cluster:
    """The replicas of some groups with what drives, scales and feeds them.

    `dispatch` takes requests and aborts at their time. `on_end` is told of each end, `first_tokens` of each beginning.
    """

    def __init__(
        self,
        clock: Clock,
        groups: Sequence[ReplicaGroup],
        router: Router,
        recorder: Recorder,
        *,
        signal_interval_s: float = 0.0,
        fast_forward: bool = True,
        log_decisions: bool = False,
        on_end: OnEnd | None = None,
        first_tokens: FirstTokens | None = None,
        slo: Slo | None = None,
        link: LinkSpeed | None = None,
        flow_control: FlowControl | None = None,
    ) -> None:
        features = RouterFeatures.of(router)
        by_steps = features.reads_caches and len(recorder.replicas) > 1
        roles = Roles(on_end) if is_disaggregated(groups) else None
        self._recorder = recorder
        self.fleet = Fleet(
            lambda: clock,
            groups,
            recorder,
            fast_forward=fast_forward and not by_steps,
            log_decisions=log_decisions,
            on_end=on_end if roles is None else roles.request_ended,
            first_tokens=first_tokens,
            one_server=features.one_server,
        )
        self.dispatch: Dispatch | Disaggregation | Gateway
        if roles is None:
            self.dispatch = way_to(clock, self.fleet.replicas, self.fleet.intakes, router, signal_interval_s)
            self.dispatch.admission = self.fleet.admission
            if features.tells_regret:
                from simulator.fleet.regret import Regret

                self.dispatch.regret = Regret(self.fleet.replicas, recorder.regrets.add)
        else:
            speed = link or LinkSpeed()
            self.dispatch = roles.connect(clock, self.fleet, groups, router, signal_interval_s, speed, recorder)
        self._scaling = Scaling(clock, groups, self.fleet, self.dispatch.replicas, recorder, slo)
        self.halves: Disaggregation | None = None if isinstance(self.dispatch, Dispatch) else self.dispatch
        self._gateway: Gateway | None = None
        if flow_control is not None:
            from simulator.fleet.gateway import Gateway

            if flow_control.counts_tokens:
                from simulator.fleet.tokens_in_flight import TokensInFlight

                self.dispatch.count_tokens(TokensInFlight(router, self.fleet.replicas, recorder))
            look_s = signal_interval_s if all(side.looks is not None for side in self.dispatch.sides) else 0.0
            self.dispatch = self._gateway = Gateway(
                clock, self.dispatch, flow_control, recorder, on_end, self.fleet.loads, look_s
            )

    def records(self, workload: Workload) -> Records:
        """The records of a run that is over; requests that have not ended are recorded as unfinished."""
        self.fleet.abandon()
        if self._gateway is not None:
            self._gateway.abandon()
        self._scaling.record(self._recorder.end_s())
        return self._recorder.records(workload, self.fleet.groups)
