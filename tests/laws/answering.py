"""Random traffic that answers back, for the laws: conversations that branch and join, closed loops, impatience."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from hypothesis import strategies as st

from simulator.front_end import NO_FRONT_END, FrontEnd
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.simulate import Run, simulate
from simulator.workload import Client, ClosedLoop, Workload
from tests.laws.scenarios import Scenario, scenarios

FRONT_ENDS = (FrontEnd(), FrontEnd(), FrontEnd(0.003), FrontEnd(0.003, 0.004), FrontEnd(0.0, 0.002))
TOKENISING = FrontEnd(0.003, 0.0, 0.0007)


@dataclass(frozen=True, slots=True)
class Answering:
    """A scenario, its workload answering back, and how far the clients are from the engine."""

    scenario: Scenario
    front_end: FrontEnd = NO_FRONT_END
    max_queued_requests: int | None = None

    @property
    def workload(self) -> Workload:
        return self.scenario.workload

    def on(self, workload: Workload) -> Answering:
        """The same for another workload."""
        return replace(self, scenario=self.scenario.on(workload))

    def run(
        self,
        *,
        fast_forward: bool = True,
        log_decisions: bool = False,
        make_blocks: Callable[[int, int], KVBlocks] = BlockLedger,
    ) -> Run:
        scenario = self.scenario
        return simulate(
            scenario.workload,
            make_policy=scenario.new_policy,
            kv=scenario.memory,
            cost=scenario.cost,
            swap_s_per_block=scenario.swap_s_per_block,
            swap_overlap=scenario.swap_overlap,
            make_blocks=make_blocks,
            replicas=scenario.replicas,
            router=scenario.router,
            fast_forward=fast_forward,
            log_decisions=log_decisions,
            front_end=self.front_end,
            max_queued_requests=self.max_queued_requests,
        )


@st.composite
def answering(draw: st.DrawFn, name: str, *, max_requests: int = 10) -> Answering:
    """Traffic for the policy named: some of a scenario's requests follow others; loops and clients come beside them."""
    scenario = draw(scenarios(name, max_requests=max_requests))
    workload = scenario.workload
    count = len(workload)
    delays = st.sampled_from([0.0, 0.0, 0.0, 0.005, 0.0173, 0.1])
    after = [draw(st.integers(-1, row - 1)) if draw(st.booleans()) else -1 for row in range(count)]
    joins = draw(st.booleans())
    others = [
        tuple(draw(st.sets(st.integers(0, row - 1), max_size=3)) - {before}) if joins and before >= 0 else ()
        for row, before in enumerate(after)
    ]
    endless = draw(st.sampled_from([None, None, False, True]))
    loops = () if endless is None else (draw(_loops(workload, endless=endless)),)
    workload = replace(
        workload,
        class_index=np.array([draw(st.integers(0, 1)) for _ in range(count)], dtype=np.int64),
        class_names=("a", "b"),
        after_row=np.array(after, dtype=np.int64),
        also_after=others if joins else None,
        delay_s=np.array([draw(delays) if row >= 0 else 0.0 for row in after]),
        clients=(draw(_clients(1)), draw(_clients(2))) if draw(st.booleans()) else (),
        loops=loops,
        until_s=0.1 if endless else draw(st.sampled_from([inf, inf, 0.1])),
    )
    return Answering(
        scenario.on(workload),
        front_end=draw(st.sampled_from(FRONT_ENDS)),
        max_queued_requests=draw(st.sampled_from([None, None, 1, 3])),
    )


@st.composite
def _clients(draw: st.DrawFn, stream: int) -> Client:
    return Client(
        ttft_timeout_s=draw(st.sampled_from([inf, inf, 0.01, 0.05])),
        timeout_s=draw(st.sampled_from([inf, 0.02, 0.1, 0.5])),
        cancels=draw(st.sampled_from([True, True, False])),
        max_attempts=draw(st.integers(1, 4)),
        backoff_s=draw(st.sampled_from([0.0, 0.005, 0.03])),
        backoff_factor=draw(st.sampled_from([1.0, 2.0])),
        jitter=draw(st.sampled_from([0.0, 0.5, 1.0])),
        stream=stream,
    )


@st.composite
def _loops(draw: st.DrawFn, workload: Workload, *, endless: bool) -> ClosedLoop:
    """Users who take requests like those of the workload, alone or in pairs. Without an end, all of them think."""
    base = [
        (int(given), int(output)) for given, output in zip(workload.input_tokens, workload.output_tokens, strict=True)
    ]
    pairs = draw(st.booleans())
    thinks = [0.005, 0.0173] if endless else [0.0, 0.0, 0.005, 0.0173]
    think_s = [draw(st.sampled_from(thinks)) for _ in range(4)]
    kind = draw(st.integers(0, 1))
    cap = int(workload.max_tokens[0])

    def pool(chains: int) -> Workload:
        rows = chains * 2 if pairs else chains
        lengths = [base[row % len(base)] for row in range(rows)]
        follows = [pairs and row % 2 == 1 for row in range(rows)]
        return Workload(
            arrival_s=np.zeros(rows),
            input_tokens=np.array([given for given, _ in lengths], dtype=np.int64),
            output_tokens=np.array([output for _, output in lengths], dtype=np.int64),
            max_tokens=np.full(rows, cap, dtype=np.int64),
            priority=np.zeros(rows, dtype=np.int64),
            class_index=np.full(rows, kind, dtype=np.int64),
            class_names=("a", "b"),
            request_ids=[f"loop-{row}" for row in range(rows)],
            after_row=np.array([row - 1 if later else -1 for row, later in enumerate(follows)], dtype=np.int64),
            delay_s=np.array([0.0 if later else think_s[row % 4] for row, later in enumerate(follows)]),
        )

    return ClosedLoop(draw(st.integers(1, 4)), pool, None if endless else draw(st.integers(1, 8)))
