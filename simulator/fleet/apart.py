"""Fleets whose replicas are simulated independently of one another, and the reasons why others cannot be."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from simulator.fleet.dispatch import Dispatch
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.replicas import Replicas
from simulator.fleet.router import Router, RouterFeatures
from simulator.fleet.signals import Signals
from simulator.fleet.windows import ReplicaHost, serve_by_looks, serve_unseen
from simulator.request import Request
from simulator.workload import Workload


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
