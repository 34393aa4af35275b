"""The `fleet:` of a scenario, groups of replicas that differ, and the `flow_control:` of the gateway before them."""

from typing import Annotated, Any, Literal, Self

from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.allowed import model_schema
from scenarios.schema.base import JsonSchema, Strict
from scenarios.schema.distributions import PositiveTime, Time
from scenarios.schema.source.hints import refusal
from simulator.fleet.gateway import ConcurrencyMode, Detector, Fairness, FlowControl, Ordering
from simulator.fleet.group import Autoscaling, Targets

# The `autoscaling:` of a fleet's group: names as in the Kubernetes HPA and vLLM's metrics.

Replicas = Annotated[int, Field(ge=1, le=10_000)]


class TargetsConfig(Strict):
    """Targets of the metrics; at least one. The largest number of replicas that one of them asks for counts."""

    num_requests_waiting: Annotated[
        Annotated[float, Field(gt=0, le=1e6)] | None, doc("waiting requests of a replica, mean over ready ones")
    ] = None
    kv_cache_usage: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None, doc("used / usable KV blocks, mean over ready replicas")
    ] = None
    slo_attainment: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        doc("share of an interval's finished requests within `slo`: below it one replica more, otherwise one fewer"),
    ] = None


class AutoscalingConfig(Strict):
    """The number of a group's replicas by rule: that of the Kubernetes Horizontal Pod Autoscaler.

    At every interval a metric asks for ceil(its sum over ready replicas / target), or for no change within the
    tolerance. Requests that were given to a replica stay there; routers see ready replicas only.
    """

    min_replicas: Annotated[Replicas, doc("fewest replicas")] = 1
    max_replicas: Annotated[Replicas, doc("most replicas, draining ones included")]
    targets: Annotated[TargetsConfig, doc("targets of the metrics")]
    interval_s: Annotated[PositiveTime, doc("time between evaluations")] = 15.0
    tolerance: Annotated[
        float, Field(ge=0, le=1), doc("distance from a target, as a share of it, that changes nothing")
    ] = 0.1
    startup_s: Annotated[Time, doc("time from the decision until the replica takes requests")] = 60.0
    scale_up_stabilization_s: Annotated[
        Time, doc("a replica starts if all evaluations in this time asked for more replicas")
    ] = 0.0
    scale_down_stabilization_s: Annotated[
        Time, doc("a replica drains if all evaluations in this time asked for fewer replicas")
    ] = 300.0

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise refusal(f"{self.min_replicas} is above max_replicas {self.max_replicas}", None, key="min_replicas")
        if not self.targets.model_dump(exclude_none=True):
            raise refusal("no metric has a target", f"one of {', '.join(TargetsConfig.model_fields)}", key="targets")
        return self

    def rule(self) -> Autoscaling:
        """The rule as the simulator takes it."""
        data = self.model_dump()
        return Autoscaling(**{**data, "targets": Targets(**data["targets"])})


# The `fleet:` of a scenario: groups of replicas that differ.


class GroupConfig(Strict):
    """Replicas of one kind. What a group leaves out is as at the scenario's top level; of `hardware` and `engine`, key
    by key, but for keys of the engine that another policy than the scenario's does not take."""

    name: Annotated[
        str,
        Field(max_length=60, pattern=r"^[^\W_][\w.+-]*$", description="at most 60 letters, digits and _ . + -"),
        doc("name of the group, in reports"),
    ]
    replicas: Annotated[int, Field(ge=1, le=100_000), doc("servers of the group")] = 1
    model: Annotated[str | dict[str, Any] | None, JsonSchema(model_schema), doc("its model")] = None
    hardware: Annotated[dict[str, Any] | None, doc("keys of `hardware` that differ")] = None
    cost: Annotated[dict[str, Any] | None, doc("its `cost`, which replaces the scenario's")] = None
    host: Annotated[dict[str, Any] | None, doc("its `host`, which replaces the scenario's")] = None
    engine: Annotated[dict[str, Any] | None, doc("keys of `engine` that differ")] = None
    role: Annotated[
        Literal["both", "prefill", "decode"],
        doc("part of each request that the group serves; KV moves from prefill to decode"),
    ] = "both"
    autoscaling: Annotated[AutoscalingConfig | None, doc("rule for the number of its replicas; null: fixed")] = None

    @property
    def initial_replicas(self) -> int:
        """Servers at the start: `replicas`, where that is given or nothing scales."""
        scales = self.autoscaling is not None and "replicas" not in self.model_fields_set
        return self.autoscaling.min_replicas if self.autoscaling is not None and scales else self.replicas

    @property
    def scales(self) -> AutoscalingConfig | None:
        """The rule, where it leaves a choice."""
        rule = self.autoscaling
        return None if rule is None or rule.min_replicas == rule.max_replicas else rule

    @model_validator(mode="after")
    def _within_limits(self) -> Self:
        rule = self.autoscaling
        if rule is not None and not rule.min_replicas <= self.initial_replicas <= rule.max_replicas:
            limits = f"autoscaling's {rule.min_replicas} to {rule.max_replicas}"
            raise refusal(f"{self.initial_replicas} is outside {limits}", "leave it out: min_replicas", key="replicas")
        return self


# The `flow_control:` of a scenario: what a gateway does with requests while the replicas are saturated.

_USUAL = FlowControl()
_Most = Annotated[int, Field(ge=1, le=10**9)] | None


class FlowControlConfig(Strict):
    """A gateway that holds requests back, as llm-d's does: see `simulator/fleet/gateway.py`."""

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
