"""The key `slo`: limits of each request, targets on their distribution, and both by class."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

from annotated_types import doc
from pydantic import Field, SerializerFunctionWrapHandler, create_model, model_serializer, model_validator

from scenarios.schema.base import Strict
from scenarios.schema.source.hints import nearest, refusal
from simulator.metrics.latency import LATENCIES, Slo
from simulator.metrics.metric import PERCENTILES
from simulator.metrics.summary import METRICS, STATISTICS

Milliseconds = Annotated[float, Field(gt=0, le=1e12)]
Share = Annotated[float, Field(gt=0, le=1)]

TARGETS = tuple(f"{statistic}_{name}_ms" for name in LATENCIES for statistic in STATISTICS if statistic != "std")
_FAMILY = f"{{{'|'.join(s for s in STATISTICS if s != 'std')}}}_{{{'|'.join(LATENCIES)}}}_ms"
_PERCENTILE = re.compile(r"p([+-]?\d+(?:\.\d+)?)_(\w+)")


class _Limits(Strict):
    """Limits of each request; a limit left out is met by all. `itl_ms` holds for the longest gap between tokens."""

    ttft_ms: Annotated[Milliseconds | None, doc("limit of each request's time to first token")] = None
    tpot_ms: Annotated[Milliseconds | None, doc("limit of each request's time per output token")] = None
    e2el_ms: Annotated[Milliseconds | None, doc("limit of each request's end-to-end latency")] = None
    itl_ms: Annotated[Milliseconds | None, doc("limit of each request's longest gap between tokens")] = None
    queue_time_ms: Annotated[Milliseconds | None, doc("limit of each request's time in the queue")] = None


# One field a target, so that each is known, checked and suggested as any other key.
_FIELDS: dict[str, Any] = {
    key: (Annotated[Milliseconds | None, doc(f"target: `{key}` of summary.json at most")], None) for key in TARGETS
}
_Targets = create_model("_Targets", __base__=_Limits, __module__=__name__, **_FIELDS)


class ClassSlo(_Targets):  # type: ignore[valid-type,misc] # a base class made from the table of metrics
    """The SLO of one class, or what an SLO says of all requests.

    `attainment` is the share of the requests that must meet their limits.
    """

    attainment: Annotated[Share | None, doc("share of the requests that must meet their limits")] = None
    listed: ClassVar[tuple[str, ...]] = (*_Limits.model_fields, _FAMILY, "attainment")
    _shown: ClassVar[frozenset[str]] = frozenset()  # keys that are written out even where nothing is given

    def slo(self) -> Slo:
        """The SLO as the metrics take it."""
        targets = {key: limit for key in TARGETS if (limit := getattr(self, key)) is not None}
        limits = {key: getattr(self, key) for key in _Limits.model_fields}
        return Slo(**limits, targets=targets, attainment=self.attainment)

    @model_validator(mode="before")
    @classmethod
    def _percentiles(cls, data: object) -> object:
        """Name the percentiles that there are where a key has another; other unknown keys are found by pydantic."""
        for key in data if isinstance(data, Mapping) else ():
            if key in cls.model_fields or not (match := _PERCENTILE.fullmatch(str(key))):
                continue
            percentile, latency = float(match[1]), match[2]
            name = next((name for name in LATENCIES if latency in (name, f"{name}_ms")), None)
            name = name or (nearest(latency, [f"{name}_ms" for name in LATENCIES]) or "ttft_ms").removesuffix("_ms")
            options = " | ".join(f"p{p}_{name}_ms" for p in PERCENTILES)
            if not 0 < percentile < 100:
                raise refusal("a percentile lies above 0 and below 100", f"allowed: {options}", key=(str(key),))
            if percentile not in PERCENTILES:
                raise refusal("no summary has this percentile", f"allowed: {options}", key=(str(key),))
        return data

    @model_serializer(mode="wrap")
    def _given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the targets and classes that are not given: there are too many to list."""
        return {key: value for key, value in handler(self).items() if key in self._shown or value not in (None, {})}


class SloConfig(ClassSlo):
    """Limits and targets of all requests, and of classes.

    A class in `classes` that states any limit of a request has these instead of the limits above, and none of them
    besides; its targets and its attainment are over its own requests.
    """

    classes: Annotated[dict[str, ClassSlo], Field(default_factory=dict), doc("limits and targets of single classes")]
    listed: ClassVar[tuple[str, ...]] = (*ClassSlo.listed, "classes")
    _shown: ClassVar[frozenset[str]] = frozenset({"ttft_ms", "tpot_ms", "e2el_ms"})

    def slo(self) -> Slo:
        """The SLO as the metrics take it."""
        return replace(super().slo(), classes={name: each.slo() for name, each in self.classes.items()})

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        slo = self.slo()
        hint = "give a limit, as ttft_ms, tpot_ms or e2el_ms"
        if slo.attainment is not None and not slo.limits:
            raise refusal("no request has a limit that it could meet", hint, key=("attainment",))
        for name, own in slo.classes.items():
            if own.attainment is not None and not slo.per_request(name):
                raise refusal("no request has a limit that it could meet", hint, key=("classes", name, "attainment"))
            for key in own.targets:
                if not METRICS[key].by_class:
                    only = ", ".join(k for k, each in METRICS.items() if each.by_class and k.endswith("_itl_ms"))
                    what = "the gaps between tokens are not kept by class, but for their mean"
                    hint = f"allowed: {only}; or itl_ms, which limits each request"
                    raise refusal(what, hint, key=("classes", name, key))
        return self
