"""What prefix caches that know the future could have found, beside the regret of a router."""

from collections.abc import Sequence

from scenarios.assembly.fleet_parts import BuiltGroup
from scenarios.schema.scenario import Scenario
from simulator.memory.cache import Cache
from simulator.metrics.foresight import foresight
from simulator.metrics.window import measured_window
from simulator.request import Request
from simulator.results.records import Records
from simulator.workload import Workload


def foreseen(
    scenario: Scenario, fleet: Sequence[BuiltGroup], records: Records, workload: Workload, **cuts: float
) -> dict[str, float]:
    """The bounds on prefix hits by the names of summary.json, where the router's regret is asked for.

    Nothing where a group caches nothing, keeps several kinds of KV, or has tiers behind its GPUs' memory.
    """
    if not scenario.routing.regret or not all(_is_plain(built) for built in fleet):
        return {}
    found = foresight(records, _requests(records, workload), measured_window(records, **cuts).measured)
    if found is None:
        return {}
    shares = {
        "belady_hit_rate": found.own,
        "belady_pooled_hit_rate": found.pooled,
        "unlimited_hit_rate": found.unlimited,
    }
    return {name: share for name, share in shares.items() if share is not None}


def _is_plain(built: BuiltGroup) -> bool:
    group = built.replicas
    return group.connector is None and not group.has_kv_groups and isinstance(group.make_blocks(1, 0), Cache)


def _requests(records: Records, workload: Workload) -> dict[str, Request]:
    """All requests that the run may have had, by name; of users in a closed loop as many as came at all."""
    sources = [workload, *(loop.draw(loop.requests or len(records.requests.row)) for loop in workload.loops)]
    return {request.request_id: request for source in sources for request in source.requests()}
