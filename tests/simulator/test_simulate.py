"""A whole run: what goes in, what comes out, and at which instant."""

import gc
from dataclasses import dataclass, replace

import numpy as np
import pytest

from scenarios.check.law_trial import differences
from simulator.errors import InputError, PolicyError
from simulator.memory.blocks import BlockLedger
from simulator.plan import Chunk, Holds, StepPlan, View
from simulator.results.records import Status
from simulator.simulate import Run, simulate
from simulator.timing.cost import StepCounts, StepShape
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.laws.scenarios import POLICIES, Memory, Scenario, make_policy, make_workload

COST = Linear(1.0)
MEMORY = Memory(101, 4)


def run(workload: Workload, name: str = "continuous", replicas: int = 1, router: str = "round_robin") -> Run:
    policy = make_policy(name, 4, 64)
    return simulate(
        workload, make_policy=lambda: policy, kv=MEMORY, cost=COST, replicas=replicas, router=router, log_decisions=True
    )


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("replicas", [1, 3])
def test_no_requests(name: str, replicas: int) -> None:
    result = run(make_workload([], []), name, replicas)
    records = result.records
    assert result.decisions == []
    assert len(records.requests.row) == len(records.rows.start_s) == records.num_steps == len(records.gaps.gap_s) == 0
    assert records.replicas == replicas
    assert records.requests.row.dtype == np.int64
    assert records.requests.arrival_s.dtype == np.float64


def test_a_single_token() -> None:
    """The least that a request can be: one step, and no gap."""
    records = run(make_workload([2.5], [(1, 1)])).records
    assert records.step_end_s.tolist() == [3.5]
    assert records.requests.first_token_s.tolist() == records.requests.last_token_s.tolist() == [3.5]
    assert len(records.gaps.gap_s) == 0


def test_everybody_rejected() -> None:
    records = run(make_workload([0.0, 1.0], [(1000, 1), (1, 1000)])).records
    assert records.requests.status.tolist() == [Status.REJECTED] * 2
    assert records.num_steps == 0
    assert list(records.reject_reasons) == [0, 1]


def test_the_null_block_is_nobodys() -> None:
    """vLLM's count includes it: 101 blocks are 100, each of 4 tokens. The last token needs no room."""
    records = run(make_workload([0.0, 0.0], [(399, 2), (400, 2)])).records
    assert records.num_blocks == 100
    assert records.requests.status.tolist() == [Status.FINISHED, Status.REJECTED]


def test_an_arrival_is_seen_by_the_first_decision_at_or_after_it() -> None:
    """Steps end at 1, 2, 3 s: who comes at 2 s is in the step that begins then, who comes just after waits for 3 s."""
    just_after = float(np.nextafter(2.0, 3.0))
    for name in ("continuous", "chunked_prefill", "preemptive"):
        records = run(make_workload([0.0, 2.0, just_after], [(4, 9)] * 3), name).records
        assert records.requests.scheduled_s.tolist() == [0.0, 2.0, 3.0]


def test_who_arrives_together_is_seen_together() -> None:
    """At rest the engine wakes when everybody of that instant is there."""
    result = run(make_workload([0.5] * 3 + [9.0] * 2, [(4, 2)] * 5))
    assert result.decisions is not None
    assert [step["admitted"] for step in result.decisions] == [{"0": 0, "1": 0, "2": 0}, {}, {"3": 0, "4": 0}, {}]


def test_requests_are_named() -> None:
    workload = replace(make_workload([0.0, 0.0], [(4, 2)] * 2), request_ids=["a", "b"])
    result = run(workload)
    assert result.decisions is not None
    assert result.decisions[0]["scheduled"] == {"a": 4, "b": 4}
    assert result.records.request_id(1) == "b"


def test_classes_are_kept() -> None:
    workload = replace(
        make_workload([0.0, 0.0], [(4, 2)] * 2), class_index=np.array([1, 0]), class_names=("chat", "batch")
    )
    records = run(workload).records
    assert records.class_names == ("chat", "batch")
    assert records.requests.class_index.tolist() == [1, 0]


def test_decisions_only_where_asked() -> None:
    policy = make_policy("continuous", 4, 64)
    result = simulate(make_workload([0.0], [(4, 2)]), make_policy=lambda: policy, kv=MEMORY, cost=COST)
    assert result.decisions is None


def test_decisions_of_replicas_in_order_of_time() -> None:
    result = run(make_workload([0.0, 0.25, 0.5], [(4, 3)] * 3), replicas=3)
    assert result.decisions is not None
    order = [(step["t_start_s"], step["replica"], step["step"]) for step in result.decisions]
    assert order == sorted(order)
    assert [step["replica"] for step in result.decisions] == [0, 1, 2] * 3


def test_the_form_of_a_decision() -> None:
    result = run(make_workload([0.5], [(4, 2)]))
    assert result.decisions == [
        {
            "replica": 0,
            "step": 0,
            "t_start_s": 0.5,
            "t_end_s": 1.5,
            "scheduled": {"0": 4},
            "admitted": {"0": 0},
            "preempted": [],
            "swapped_out": [],
            "swapped_in": [],
            "running": ["0"],
            "finished": [],
            "waiting": [],
            "num_free_blocks": 99,
            "num_free_blocks_end": 99,
        },
        {
            "replica": 0,
            "step": 1,
            "t_start_s": 1.5,
            "t_end_s": 2.5,
            "scheduled": {"0": 1},
            "admitted": {},
            "preempted": [],
            "swapped_out": [],
            "swapped_in": [],
            "running": ["0"],
            "finished": ["0"],
            "waiting": [],
            "num_free_blocks": 98,
            "num_free_blocks_end": 100,
        },
    ]
    assert all(isinstance(step["t_start_s"], float) for step in result.decisions)


def test_who_arrives_in_the_middle_of_a_run_is_in_the_log() -> None:
    """Two slots taken, so nobody is asked; still each step's entry shows who waits when it begins."""
    policy = make_policy("continuous", 1, 64)
    result = simulate(
        make_workload([0.0, 2.5], [(4, 6), (4, 2)]),
        make_policy=lambda: policy,
        kv=MEMORY,
        cost=COST,
        log_decisions=True,
    )
    assert result.decisions is not None
    assert [step["waiting"] for step in result.decisions] == [[], [], [], ["1"], ["1"], ["1"], [], []]


def test_an_executor_or_a_cost_model_is_needed() -> None:
    with pytest.raises(ValueError, match="cost model or an executor"):
        simulate(make_workload([], []), make_policy=lambda: make_policy("static", 1, 1), kv=MEMORY)


@pytest.mark.parametrize("router", ["nearest", ""])
def test_an_unknown_router_is_bad_input(router: str) -> None:
    with pytest.raises(InputError, match="unknown router") as caught:
        run(make_workload([0.0], [(4, 2)]), router=router)
    assert ", least_loaded, " in str(caught.value)


def test_each_replica_has_its_own_policy_and_blocks() -> None:
    policies, blocks = [], []

    class Changing:
        """A policy that could remember; one that cannot is shared (`tests.simulator.fleet.test_group`)."""

        max_num_seqs = 4
        plan = make_policy("continuous", 4, 64).plan

    def make() -> object:
        policies.append(Changing())
        return policies[-1]

    def make_blocks(num_blocks: int, num_host_blocks: int) -> BlockLedger:
        blocks.append(BlockLedger(num_blocks, num_host_blocks))
        return blocks[-1]

    simulate(
        make_workload([0.0] * 4, [(4, 2)] * 4),
        make_policy=make,  # type: ignore[arg-type] # a policy, said loosely
        kv=MEMORY,
        cost=COST,
        make_blocks=make_blocks,
        replicas=3,
    )
    assert len(policies) == len({id(policy) for policy in policies}) == 3
    assert [(ledger.num_blocks, ledger.num_host_blocks) for ledger in blocks] == [(100, 0)] * 3


def test_progress_is_told_how_many_have_ended() -> None:
    told: list[int] = []
    count = 2000
    policy = make_policy("continuous", 4, 64)
    simulate(
        make_workload([10.0 * i for i in range(count)], [(4, 2)] * count),
        make_policy=lambda: policy, kv=MEMORY, cost=COST, progress=told.append,
    )  # fmt: skip
    assert 1 < told[0] <= 500, "now and then"
    assert told == list(range(told[0], count + 1, told[0]))


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        run(make_workload([0.0], [(4, 2)]))
        assert gc.isenabled() == enabled
        with pytest.raises(PolicyError):
            simulate(
                make_workload([0.0], [(4, 2)]),
                make_policy=lambda: Greedy(lie=Holds.STEP, chunk=99),
                kv=MEMORY,
                cost=COST,
            )
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


@dataclass(frozen=True, slots=True)
class Greedy:
    """Admits whoever waits, at once, and says that its plans hold for as long as one likes."""

    lie: Holds
    chunk: int = 4
    max_num_seqs: int = 4

    def plan(self, view: View) -> StepPlan:
        return StepPlan(prefill=tuple(Chunk(request, self.chunk) for request in view.waiting), holds=self.lie)


def test_a_plan_is_held_for_as_long_as_it_says() -> None:
    """Who holds until a change is not asked when somebody arrives; who is asked every step sees it at once."""
    workload = make_workload([0.0, 2.5], [(4, 8), (4, 2)])

    def scheduled_s(holds: Holds) -> list[float]:
        result = simulate(workload, make_policy=lambda: Greedy(holds), kv=MEMORY, cost=COST)
        times: list[float] = result.records.requests.scheduled_s.tolist()
        return times

    assert scheduled_s(Holds.STEP) == scheduled_s(Holds.ARRIVAL) == [0.0, 3.0]
    assert scheduled_s(Holds.CHANGE)[1] > 3.0


class Frugal:
    """A cost model that counts how often it is asked for what, and keeps what it answers."""

    wants_context_stats = False

    def __init__(self) -> None:
        self.steps = 0
        self.runs = 0
        self.answers: list[list[float]] = []

    def step_s(self, shape: StepShape) -> float:
        self.steps += 1
        return COST.step_s(shape)

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        self.runs += 1
        return COST.decode_run_s(shape, repeat)

    def remarks(self, steps: StepCounts) -> tuple[str, ...]:
        return ()


def test_fast_forward_takes_few_looks_at_a_long_answer() -> None:
    workload = make_workload([0.0], [(4, 5000)])
    memory = Memory(2000, 4)
    looks = {}
    for fast_forward in (True, False):
        cost = Frugal()
        records = simulate(
            workload,
            make_policy=lambda: make_policy("continuous", 4, 64),
            kv=memory,
            cost=cost,
            fast_forward=fast_forward,
        ).records
        assert records.num_steps == 5000
        looks[fast_forward] = cost.steps + cost.runs
    assert looks[False] == 5000
    assert looks[True] <= 60


ARRIVALS = {
    "at once": [0.0] * 40,
    "evenly": [0.1 * i for i in range(40)],
    "in fives": [float(i // 5) for i in range(40)],
}


@pytest.mark.parametrize("pattern", ARRIVALS)
@pytest.mark.parametrize("name", POLICIES)
def test_a_replica_that_runs_ahead_does_not_overtake_the_others(name: str, pattern: str) -> None:
    """Where the next request goes depends on what each has finished by then, and many times are equal."""
    workload = make_workload(ARRIVALS[pattern], [(3 + i % 5, 2 + i % 11) for i in range(40)])
    scenario = Scenario(
        workload, make_policy(name, 3, 16), Memory(40, 4), Linear(0.25), replicas=2, router="least_loaded"
    )
    fast, stepwise = scenario.run(log_decisions=True), scenario.run(log_decisions=True, fast_forward=False)
    assert differences(fast.records, stepwise.records) == []
    assert fast.decisions == stepwise.decisions
