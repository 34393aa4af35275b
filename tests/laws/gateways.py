"""Random fleets behind a gateway: of any kind, under any router, with clients that leave and retry, and with joins."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulator.fleet.dispatch import LinkSpeed
from simulator.fleet.gateway import FlowControl
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.routers import load_router
from simulator.front_end import NO_FRONT_END, FrontEnd
from simulator.simulate import Run, simulate_fleet
from simulator.workload import Client, Workload
from tests.laws.fleets import fleets
from tests.laws.test_autoscaling import autoscaled
from tests.laws.test_disaggregation import apart


@dataclass(frozen=True)
class Gated:
    """All of a run behind a gateway; `flow_control` None: there is none."""

    workload: Workload
    groups: list[ReplicaGroup]
    router: str
    options: dict[str, Any]
    signal_interval_s: float
    link: LinkSpeed | None
    flow_control: FlowControl | None
    front_end: FrontEnd = NO_FRONT_END

    def run(self, *, fast_forward: bool = True) -> Run:
        return simulate_fleet(
            self.workload,
            self.groups,
            router=load_router(self.router, self.options),
            signal_interval_s=self.signal_interval_s,
            link=self.link,
            flow_control=self.flow_control,
            front_end=self.front_end,
            fast_forward=fast_forward,
            log_decisions=True,
        )

    @property
    def waits_for(self) -> list[tuple[int, ...]]:
        """The rows that each row follows."""
        after, also = self.workload.after_row, self.workload.also_after
        if after is None or also is None:
            return [()] * len(self.workload)
        return [(first, *also[row]) if first >= 0 else () for row, first in enumerate(after.tolist())]


@st.composite
def controls(draw: st.DrawFn) -> FlowControl:
    few = st.sampled_from([None, None, 1, 2, 4])
    return FlowControl(
        detector=draw(st.sampled_from(["utilization", "concurrency"])),
        max_concurrency=draw(st.integers(1, 3)),
        concurrency_mode=draw(st.sampled_from(["requests", "tokens", "hybrid"])),
        max_token_concurrency=draw(st.sampled_from([1, 4, 20])),
        queue_depth_threshold=draw(st.integers(1, 2)),
        kv_cache_util_threshold=draw(st.sampled_from([0.05, 0.3, 1.0])),
        fairness=draw(st.sampled_from(["global_strict", "round_robin"])),
        ordering=draw(st.sampled_from(["fcfs", "deadline"])),
        ttl_s=draw(st.sampled_from([0.004, 0.03, 0.2, inf, inf])),
        max_requests=draw(few),
        max_requests_per_priority=draw(few),
        min_ceiling=draw(st.sampled_from([1.0, 1.0, 0.4])),
    )


@st.composite
def patient_or_not(draw: st.DrawFn) -> Client:
    return Client(
        ttft_timeout_s=draw(st.sampled_from([inf, inf, 0.02, 0.1])),
        timeout_s=draw(st.sampled_from([inf, 0.05, 0.3])),
        cancels=draw(st.sampled_from([True, True, False])),
        max_attempts=draw(st.integers(1, 4)),
        backoff_s=draw(st.sampled_from([0.001, 0.02, 0.1])),
        jitter=draw(st.sampled_from([0.0, 0.5])),
        stream=draw(st.integers(0, 9)),
    )


@st.composite
def asked(draw: st.DrawFn, workload: Workload) -> Workload:
    """The requests with classes, priorities and deadlines; clients that react; some of them follow others."""
    count = len(workload)

    def column(values: Any, dtype: type = np.int64) -> Any:
        return np.array([draw(values) for _ in range(count)], dtype=dtype)

    waits = [
        tuple(sorted(draw(st.sets(st.integers(0, row - 1), max_size=3)))) if row and draw(st.booleans()) else ()
        for row in range(count)
    ]
    named = replace(
        workload,
        priority=column(st.integers(0, 2)),
        class_index=column(st.integers(0, 1)),
        class_names=("a", "b"),
        request_ids=[str(row) for row in range(count)],
        deadline_s=column(st.sampled_from([np.nan, 0.01, 0.5]), np.float64),
        clients=(draw(patient_or_not()), draw(patient_or_not())) if draw(st.booleans()) else (),
    )
    if draw(st.booleans()):
        return named
    after = np.array([each[0] if each else -1 for each in waits], dtype=np.int64)
    delay_s = np.where(after >= 0, column(st.sampled_from([0.0, 0.0, 0.01, 0.1]), np.float64), 0.0)
    return replace(named, after_row=after, delay_s=delay_s, also_after=[each[1:] for each in waits])


@st.composite
def gated(draw: st.DrawFn, *, flow_control: FlowControl | None = None) -> Gated:
    """Replicas of any kind behind a gateway."""
    kind = draw(st.sampled_from(["plain", "plain", "apart", "autoscaled"]))
    control = flow_control or draw(controls())
    if kind == "apart":
        halves = draw(apart())
        return Gated(
            draw(asked(halves.workload)),
            halves.groups,
            halves.router,
            {},
            halves.signal_interval_s,
            halves.link,
            control,
        )
    fleet = draw(fleets() if kind == "plain" else autoscaled())
    workload = draw(asked(fleet.workload))
    most = draw(st.sampled_from([None, None, 0, 1]))
    groups = [replace(group, max_queued_requests=most) for group in fleet.groups]
    return Gated(workload, groups, fleet.router, fleet.options, fleet.signal_interval_s, None, control)
