"""How many replicas a group wants: the rule of the Kubernetes Horizontal Pod Autoscaler, over an engine's own metrics.

At every interval each metric proposes ceil(its sum over the ready replicas / target); within `tolerance` of the present
number it proposes no change; the largest proposal counts. A smaller number is taken only when every proposal of the
scale-down window was smaller, a larger one when every proposal of the scale-up window was larger (Kubernetes,
"Horizontal Pod Autoscaling": algorithm details, stabilization window; `behavior.scaleUp/scaleDown`, whose rate policies
are left out). llm-d and the Gateway API Inference Extension scale vLLM by `num_requests_waiting` and
`kv_cache_usage_perc` in this way. A share of requests within their SLO is no load that spreads over replicas, so it
proposes a step: one more below its target, one fewer otherwise.
"""

from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the metrics. A metric whose target is None is not used.

    The first is requests waiting in the queue of a replica, the second used / usable KV blocks, both as the mean over
    the ready replicas; the third the share of the requests ended in an interval that met their limits.
    """

    num_requests_waiting: float | None = None
    kv_cache_usage: float | None = None
    slo_attainment: float | None = None


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """The rule and its limits. Times in seconds.

    `max_replicas` is also how many servers there are: one that drains keeps its server until it is empty.
    """

    min_replicas: int
    max_replicas: int
    targets: Targets = field(default_factory=Targets)
    interval_s: float = 15.0
    tolerance: float = 0.1
    startup_s: float = 0.0
    scale_up_stabilization_s: float = 0.0
    scale_down_stabilization_s: float = 300.0


class Seen(NamedTuple):
    """The input of an evaluation: `waiting` and `kv` are sums over the ready replicas, `current` counts starting ones.

    `attained` of the `ended` requests of the last interval met their limits.
    """

    current: int
    waiting: int
    kv: float
    ended: int
    attained: int


def proposal(rule: Autoscaling, seen: Seen) -> int:
    """The number of replicas that the metrics of one moment ask for, within the limits."""
    targets, current = rule.targets, seen.current
    proposals = []
    for total, target in ((seen.waiting, targets.num_requests_waiting), (seen.kv, targets.kv_cache_usage)):
        if target is not None:
            ratio = total / (target * current)
            proposals.append(current if abs(ratio - 1.0) <= rule.tolerance else ceil(total / target))
    if targets.slo_attainment is not None:
        missed = seen.attained < targets.slo_attainment * seen.ended
        proposals.append(current if not seen.ended else current + 1 if missed else current - 1)
    return min(max(max(proposals, default=current), rule.min_replicas), rule.max_replicas)


class Stabilized:
    """Proposals of the recent past, and the number of replicas that follows from them."""

    def __init__(self, rule: Autoscaling) -> None:
        self._rule = rule
        self._recent: deque[tuple[float, int]] = deque()

    def wanted(self, now_s: float, current: int, proposed: int) -> int:
        """The number to have from now on, where `proposed` is the newest proposal."""
        rule, recent = self._rule, self._recent
        recent.append((now_s, proposed))
        up_s, down_s = rule.scale_up_stabilization_s, rule.scale_down_stabilization_s
        while recent[0][0] < now_s - max(up_s, down_s):
            recent.popleft()
        most = max(count for at_s, count in recent if at_s >= now_s - down_s)
        least = min(count for at_s, count in recent if at_s >= now_s - up_s)
        return least if least > current else min(most, current)
