"""The `flow_control:` of a scenario: what a gateway does with requests while the replicas are saturated."""

from typing import Annotated

from annotated_types import doc
from pydantic import Field

from scenarios.schema.durations import PositiveTime
from scenarios.schema.strict import Strict
from simulator.fleet.flow_control import ConcurrencyMode, Detector, Fairness, FlowControl, Ordering

_USUAL = FlowControl()
_Most = Annotated[int, Field(ge=1, le=10**9)] | None


class FlowControlConfig(Strict):
    """A gateway that holds requests back, as llm-d's does: see `simulator/fleet/flow_control.py`."""

    detector: Annotated[
        Detector,
        doc(
            "what says that the replicas are saturated: queues and KV as last seen, or the requests sent and not ended"
        ),
    ] = _USUAL.detector
    max_concurrency: Annotated[
        int, Field(ge=1, le=10**9), doc("concurrency: requests of a replica which is saturated")
    ] = _USUAL.max_concurrency
    concurrency_mode: Annotated[
        ConcurrencyMode,
        doc("concurrency: what is counted; tokens: those of prompts without a first token; hybrid: the fuller of both"),
    ] = _USUAL.concurrency_mode
    max_token_concurrency: Annotated[
        int, Field(ge=1, le=10**12), doc("tokens, hybrid: prompt tokens of a replica which is saturated")
    ] = _USUAL.max_token_concurrency
    queue_depth_threshold: Annotated[
        int, Field(ge=1, le=10**9), doc("requests that wait at a replica which is saturated")
    ] = _USUAL.queue_depth_threshold
    kv_cache_util_threshold: Annotated[
        float, Field(gt=0, le=1), doc("share of its KV blocks that a saturated replica uses")
    ] = _USUAL.kv_cache_util_threshold
    fairness: Annotated[
        Fairness,
        doc("which class of a priority is next: that of the foremost request, or each in turn"),
    ] = _USUAL.fairness
    ordering: Annotated[Ordering, doc("which request of a class is next: by arrival, or by deadline")] = _USUAL.ordering
    ttl_s: Annotated[PositiveTime | None, doc("longest wait of a request; null: no limit")] = _USUAL.ttl_s
    max_requests: Annotated[_Most, doc("requests that wait at most; more are shed; null: no limit")] = (
        _USUAL.max_requests
    )
    max_requests_per_priority: Annotated[_Most, doc("of one priority")] = _USUAL.max_requests_per_priority
    min_ceiling: Annotated[
        float,
        Field(gt=0, le=1),
        doc("saturation up to which the least important priority passes; from the first, 1, it falls in equal steps"),
    ] = _USUAL.min_ceiling
