"""The way into a fleet whose groups prefill and decode apart."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from simulator.engine.clock import Clock
from simulator.engine.completion import OnEnd
from simulator.errors import InputError
from simulator.fleet.dispatch import Dispatch
from simulator.fleet.fleet import Fleet
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.group_parts import check_parts
from simulator.fleet.link import Link, LinkSpeed
from simulator.fleet.router import Router
from simulator.fleet.signals import way_to
from simulator.policy_traits import Traits
from simulator.results.recorder import Recorder
from simulator.results.records import Cause, Status

if TYPE_CHECKING:
    from simulator.fleet.disaggregation import Disaggregation


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
