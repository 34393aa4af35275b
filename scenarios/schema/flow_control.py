"""The `flow_control:` of a scenario: what a gateway does with requests while the replicas are saturated."""

from typing import Annotated, Literal

from annotated_types import doc
from pydantic import Field

from scenarios.schema.durations import PositiveTime
from scenarios.schema.strict import Strict

_Most = Annotated[int, Field(ge=1, le=10**9)] | None


class FlowControlConfig(Strict):
    """A gateway that holds requests back, as llm-d's does: see `simulator/fleet/gateway.py`."""

    detector: Annotated[
        Literal["utilization", "concurrency"],
        doc(
            "what says that the replicas are saturated: queues and KV as last seen, or the requests sent and not ended"
        ),
    ] = "utilization"
    max_concurrency: Annotated[
        int, Field(ge=1, le=10**9), doc("concurrency: requests of a replica which is saturated")
    ] = 100
    queue_depth_threshold: Annotated[
        int, Field(ge=1, le=10**9), doc("requests that wait at a replica which is saturated")
    ] = 5
    kv_cache_util_threshold: Annotated[
        float, Field(gt=0, le=1), doc("share of its KV blocks that a saturated replica uses")
    ] = 0.8
    fairness: Annotated[
        Literal["global_strict", "round_robin"],
        doc("which class of a priority is next: that of the foremost request, or each in turn"),
    ] = "global_strict"
    ordering: Annotated[
        Literal["fcfs", "deadline"], doc("which request of a class is next: by arrival, or by deadline")
    ] = "fcfs"
    ttl_s: Annotated[PositiveTime | None, doc("time that a request waits at most; null: for ever")] = 60.0
    max_requests: Annotated[_Most, doc("requests that wait at most; more are shed; null: no limit")] = None
    max_requests_per_priority: Annotated[_Most, doc("of one priority")] = None
    min_ceiling: Annotated[
        float,
        Field(gt=0, le=1),
        doc("saturation up to which the least important priority passes; from the first, 1, it falls in equal steps"),
    ] = 1.0
