"""What flow control at a gateway may be told: its settings, their defaults, and how full the replicas are.

All of it is llm-d's, below pkg/epp/ of llm-d-router. Saturation is the mean over the replicas of max(waiting /
`queue_depth_threshold`, used KV / `kv_cache_util_threshold`) (`Saturation` in framework/plugins/flowcontrol/
saturationdetector/utilization/detector.go, 39142fb9; 5 and 0.8 in its config.go). The other detector counts what was
sent and has not ended, which the gateway knows at once (saturationdetector/concurrency/detector.go, 3fdd2e6f; 100
requests and 1,000,000 tokens in its config.go): requests / (replicas x `max_concurrency`); or tokens / (replicas x
`max_token_concurrency`), prompt tokens not known to be cached of requests without a first token
(`simulator/fleet/tokens_in_flight.py`); or `hybrid`, the mean over the replicas of the larger of the two (its pull
request 1991). With a `min_ceiling` below 1 bands pass up to less saturation the less important they are, from 1 for the
first in equal steps (usagelimits/priorityholdback, domain rank). A request waits 60 s at most
(flowcontrol/controller/config.go, 0443359b).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Literal

from simulator.engine.replica_load import ReplicaLoad

Detector = Literal["utilization", "concurrency"]
ConcurrencyMode = Literal["requests", "tokens", "hybrid"]
Fairness = Literal["global_strict", "round_robin"]
Ordering = Literal["fcfs", "deadline"]
NONE_SENT: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FlowControl:
    """What a gateway does with requests while the replicas are saturated; `ttl_s` may be infinite."""

    detector: Detector = "utilization"
    max_concurrency: int = 100
    concurrency_mode: ConcurrencyMode = "requests"
    max_token_concurrency: int = 1_000_000
    queue_depth_threshold: int = 5
    kv_cache_util_threshold: float = 0.8
    fairness: Fairness = "global_strict"
    ordering: Ordering = "fcfs"
    ttl_s: float = 60.0
    max_requests: int | None = None
    max_requests_per_priority: int | None = None
    min_ceiling: float = 1.0

    @property
    def counts(self) -> bool:
        """Whether the gateway counts what it has sent, instead of looking at the replicas."""
        return self.detector == "concurrency"

    @property
    def counts_tokens(self) -> bool:
        """Whether it counts tokens."""
        return self.counts and self.concurrency_mode != "requests"

    def saturation(self, loads: Sequence[ReplicaLoad], tokens: Mapping[int, int] = NONE_SENT) -> float:
        """How full the replicas are, in the mean; 1 or more: nothing passes. `tokens` are those sent, by replica."""
        if not loads:
            return 1.0
        if not self.counts:
            return sum([self._use(load) for load in loads]) / len(loads)
        most, most_tokens = self.max_concurrency, self.max_token_concurrency
        requests = [load.num_unfinished for load in loads]
        if not self.counts_tokens:
            return sum(requests) / (most * len(loads))
        sent = [tokens.get(load.index, 0) for load in loads]
        if self.concurrency_mode == "tokens":
            return sum(sent) / (most_tokens * len(loads))
        fuller = [max(one / most, other / most_tokens) for one, other in zip(requests, sent, strict=True)]
        return sum(fuller) / len(loads)

    def _use(self, load: ReplicaLoad) -> float:
        queued = (load.num_waiting - load.expected) / self.queue_depth_threshold
        return max(queued, load.kv_utilization / self.kv_cache_util_threshold)

    def ceilings(self, bands: int) -> list[float]:
        """The saturation up to which each of so many bands passes, the most important first."""
        step = (1.0 - self.min_ceiling) / (bands - 1) if bands > 1 else 0.0
        return [1.0 - rank * step for rank in range(bands)]

    @property
    def expires(self) -> bool:
        """Whether a request waits for a limited time."""
        return self.ttl_s < inf
