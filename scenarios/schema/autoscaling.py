"""The `autoscaling:` of a fleet's group: names as in the Kubernetes HPA and vLLM's metrics."""

from typing import Annotated, Self

from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.durations import PositiveTime, Time
from scenarios.schema.source.hints import refusal
from scenarios.schema.strict import Strict
from simulator.fleet.autoscaling import Autoscaling, Targets

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
