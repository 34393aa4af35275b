"""A fleet as a whole: replicas on one clock behind a router, with or without roles, or each on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Protocol

from simulator.engine.clock import Clock
from simulator.engine.completion import OnEnd
from simulator.errors import InputError
from simulator.fleet.dispatch import Dispatch, Link, LinkSpeed
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import ReplicaGroup, check_parts
from simulator.fleet.router import Replicas, Router, RouterFeatures
from simulator.fleet.scaling import Scaling
from simulator.fleet.signals import Signals, way_to
from simulator.fleet.windows import ReplicaHost, serve_by_looks, serve_unseen
from simulator.front_end import FirstTokens
from simulator.metrics.latency import Slo
from simulator.policy_traits import Traits
from simulator.request import Request
from simulator.results.recorder import Recorder
from simulator.results.records import Cause, Records, Status
from simulator.workload import Workload

if TYPE_CHECKING:
    from simulator.fleet.disaggregation import Disaggregation
    from simulator.fleet.gateway import FlowControl, Gateway


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
                from simulator.fleet.dispatch import Regret

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
                from simulator.fleet.dispatch import TokensInFlight

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


# The way into a fleet whose groups prefill and decode apart.


def is_disaggregated(groups: Sequence[ReplicaGroup]) -> bool:
    """True if some groups prefill and others decode. Raises InputError for groups that do not fit together."""
    roles = {group.role for group in groups}
    if roles == {"both"}:
        return False
    if roles != {"prefill", "decode"}:
        given = ", ".join(f"{group.name}: {group.role}" for group in groups)
        raise InputError(f"the roles of the groups do not add up ({given})", hint="prefill and decode, or none")
    for group in groups:
        _check(group)
    return True


def _check(group: ReplicaGroup) -> None:
    """Raise InputError where a group cannot have half a request."""
    policy, whose = group.make_policy(), f"the group {group.name} ({group.role})"
    check_parts(group, policy)
    traits = Traits.of(policy)
    if group.role == "decode" and not traits.preempts and traits.takes_over is None:
        what = f"{whose} takes KV memory in advance, or cannot preempt"
        raise InputError(what, hint="engine: {policy: chunked_prefill}")
    if group.block_bytes <= 0:
        raise InputError(f"{whose} does not say how large its KV blocks are", hint="block_bytes")


class Roles:
    """Connects the two sides by the link; the replicas call `request_ended`."""

    def __init__(self, on_end: OnEnd | None) -> None:
        self._on_end = on_end
        self._servers: Disaggregation | None = None

    def request_ended(self, row: int, status: Status, end_s: float, cause: Cause | None) -> None:
        """A request has ended at a replica."""
        if self._servers is not None:
            self._servers.request_ended(row)
        if self._on_end is not None:
            self._on_end(row, status, end_s, cause)

    def connect(
        self,
        clock: Clock,
        fleet: Fleet,
        groups: Sequence[ReplicaGroup],
        router: Router,
        signal_interval_s: float,
        speed: LinkSpeed,
        recorder: Recorder,
    ) -> Disaggregation:
        """The servers of the clients. The decoding side has a router of its own: equal, or `for_decode()` of the other.

        A router's `prefills_apart(request, number)` says whether a request is prefilled apart from this replica.
        """
        roles = [group.role for group in groups for _ in range(group.replicas)]
        sides: dict[str, Dispatch] = {}
        decode = router.for_decode() if hasattr(router, "for_decode") else deepcopy(router)
        for role, own in (("prefill", router), ("decode", decode)):
            chosen = [replica for replica, has in zip(fleet.replicas, roles, strict=True) if has == role]
            sides[role] = way_to(clock, chosen, fleet.intakes, own, signal_interval_s)
        from simulator.fleet.disaggregation import Disaggregation

        self._servers = Disaggregation(
            clock,
            sides["prefill"],
            sides["decode"],
            fleet.replicas,
            fleet.intakes,
            Link(clock, speed),
            [group.block_bytes for group in groups for _ in range(group.replicas)],
            recorder,
            self._on_end,
            speed.fails or _none_fails,
            getattr(router, "prefills_apart", None),
        )
        return self._servers


def _none_fails(row: int) -> bool:
    return False


# Fleets whose replicas are simulated independently of one another, and the reasons why others cannot be.


class Workers(Protocol):
    """Worker processes, each of which advances some of a fleet's replicas."""

    def host_of(self, fleet: Fleet) -> ReplicaHost:
        """The host that advances replicas like those of `fleet`; `finish` gives the fleet what there is to record."""


def coupled_by(workload: Workload, groups: Sequence[ReplicaGroup], router: Router) -> str | None:
    """The reason, in words, why the replicas of a fleet depend on each other; None where they do not.

    That the router may look at their loads is not counted here: see `looks_at_every_arrival`.
    """
    if sum(group.replicas for group in groups) == 1:
        return "it has one replica"
    if workload.answers_back:
        return "clients wait for answers, leave or try again, and what they do next may go to any replica"
    for group in groups:
        if group.role != "both":
            return "requests move from the replicas that prefill to those that decode"
        if group.autoscaling is not None:
            return f"the autoscaler of the group {group.name} looks at all its replicas"
        if group.group_cost is not None:
            return f"the replicas of the group {group.name} are data-parallel ranks that step together"
    features = RouterFeatures.of(router)
    if features.reads_caches:
        return "the router asks the prefix caches at every arrival"
    if features.hears_ends or features.hears_first_tokens:
        return "the router hears at once which requests have ended"
    return None


def looks_at_every_arrival(router: Router, signal_interval_s: float) -> bool:
    """True if the router reads the current loads at every arrival, and not at intervals."""
    return RouterFeatures.of(router).reads_loads and signal_interval_s == 0


def serve_independently(
    requests: Iterable[Request], fleet: Fleet, router: Router, signal_interval_s: float, host: ReplicaHost
) -> None:
    """Serve all requests by replicas that `host` advances independently; the router does not look at every arrival."""
    if RouterFeatures.of(router).reads_loads:
        signals = Signals(fleet.loads)
        dispatch = Dispatch(router, signals.replicas, fleet.intakes, signals.sent)
        serve_by_looks(requests, dispatch.choose, host, signals.show, signal_interval_s)
    else:
        dispatch = Dispatch(router, Replicas(fleet.loads), fleet.intakes)
        serve_unseen(requests, dispatch.choose, host, len(fleet.replicas))
