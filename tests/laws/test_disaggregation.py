"""Laws of prefill and decode apart: both ways of time, conservation, blocks, KV moved once, order of a request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.division import cdiv
from simulator.engine.completion import OnEnd
from simulator.fleet.dispatch import LinkSpeed
from simulator.fleet.group import ReplicaGroup
from simulator.memory.blocks import BlockLedger
from simulator.policies.sglang import NUM_RESERVED_DECODE_TOKENS, Sglang
from simulator.policy_traits import Traits
from simulator.results.records import Cause, Records, Status
from simulator.simulate import Run, simulate_fleet
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.examples import examples
from tests.laws.scenarios import policies, scenarios
from tests.listening import Inlet, simulate_listening

BLOCK_BYTES = 1000


@dataclass(frozen=True)
class Apart:
    """Groups that prefill and groups that decode; `aborts` are (row, seconds after its arrival)."""

    workload: Workload
    groups: list[ReplicaGroup]
    router: str
    signal_interval_s: float
    link: LinkSpeed
    aborts: tuple[tuple[int, float], ...]

    def run(self, *, fast_forward: bool = True, made: list[Any] | None = None) -> Run:
        arrival_s = self.workload.arrival_s

        def make_blocks(blocks: int, host: int) -> BlockLedger:
            ledger = BlockLedger(blocks, host)
            if made is not None:
                made.append(ledger)
            return ledger

        def make_listener(inlet: Inlet) -> OnEnd:
            for row, later_s in self.aborts:
                inlet.abort_at(row, float(arrival_s[row]) + later_s)
            return ignore

        run = partial(simulate_listening, make_listener=make_listener) if self.aborts else simulate_fleet
        return run(
            self.workload,
            [replace(group, make_blocks=make_blocks) for group in self.groups],
            router=self.router,
            signal_interval_s=self.signal_interval_s,
            link=self.link,
            fast_forward=fast_forward,
            log_decisions=True,
        )


def ignore(row: int, status: Status, end_s: float, cause: Cause | None) -> None:
    """A client that leaves does not react to ends."""


BOTH = ("chunked_prefill", "chunked_prefill async", "sglang", "sglang sync", "tensorrt_llm", "tensorrt_llm async")
PREFILLING = (*BOTH, "continuous")
DECODING = (*BOTH, "preemptive", "tensorrt_llm max_utilization")


@dataclass(frozen=True)
class Together:
    """Ranks that step together take as long as the slowest of them, and with a dummy batch as its launch."""

    cost: Linear

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        return max(self.cost.base_s, *[self.cost.step_s(shape) for shape in shapes])


@st.composite
def apart(draw: st.DrawFn, *, aborts: bool = False) -> Apart:
    scenario = draw(scenarios("chunked_prefill", max_requests=15))
    policy = draw(st.sampled_from(DECODING).flatmap(policies))
    first = draw(st.sampled_from(PREFILLING).flatmap(policies))

    def group(name: str, role: Any, policy: Any) -> ReplicaGroup:
        memory, replicas = scenario.memory, draw(st.integers(1, 2))
        if isinstance(policy, Sglang):  # it leaves so much free, and cuts answers that do not fit
            more = 4 + cdiv(draw(st.sampled_from([1, 2, 5])) * NUM_RESERVED_DECODE_TOKENS, memory.block_size)
            memory = replace(memory, num_gpu_blocks=memory.num_gpu_blocks + more)
        return ReplicaGroup(
            lambda: policy,
            memory,
            scenario.cost,
            scenario.swap_s_per_block,
            group_cost=Together(scenario.cost) if draw(st.sampled_from([False, False, True])) else None,
            replicas=replicas,
            name=name,
            role=role,
            block_bytes=BLOCK_BYTES,
        )

    count = len(scenario.workload)
    groups = [group("p", "prefill", first), group("d", "decode", policy)]
    slow = [] if any(each.group_cost for each in groups) else [1e4]  # ranks go on with dummy batches meanwhile
    late = st.tuples(st.integers(0, max(count - 1, 0)), st.sampled_from([0.0, 0.001, 0.01, 0.02, 0.05, 0.2, 1.0]))
    return Apart(
        scenario.workload,
        groups,
        draw(st.sampled_from(["round_robin", "least_loaded", "power_of_two", "least_kv"])),
        draw(st.sampled_from([0.0, 0.0, 0.05])),
        LinkSpeed(draw(st.sampled_from([*slow, 1e6, 1e12])), draw(st.sampled_from([0.0, 0.003]))),
        tuple(dict(draw(st.lists(late, max_size=6))).items()) if aborts and count else (),
    )


@given(fleet=apart())
@examples(60)
def test_fast_forward_equals_stepwise(fleet: Apart) -> None:
    one, two = fleet.run(), fleet.run(fast_forward=False)
    assert differences(one.records, two.records) == []
    assert one.decisions == two.decisions


@given(fleet=apart(aborts=True))
@examples(60)
def test_fast_forward_equals_stepwise_with_aborts(fleet: Apart) -> None:
    one, two = fleet.run(), fleet.run(fast_forward=False)
    assert differences(one.records, two.records) == []
    assert one.decisions == two.decisions


@given(fleet=apart(aborts=True))
@examples(100)
def test_each_request_ends_once_and_no_block_is_kept(fleet: Apart) -> None:
    made: list[BlockLedger] = []
    records = fleet.run(made=made).records
    requests = records.requests
    assert requests.row.tolist() == list(range(len(fleet.workload)))
    ends = [Status.FINISHED, Status.REJECTED] + ([Status.ABORTED] if fleet.aborts else [])
    assert np.all(np.isin(requests.status, ends))
    done = requests.status == Status.FINISHED
    assert np.array_equal(requests.output_tokens[done], fleet.workload.output_tokens[done])
    assert [ledger.num_free for ledger in made] == [ledger.num_blocks for ledger in made]


@given(fleet=apart())
@examples(60)
def test_kv_moves_once_and_whole_in_order(fleet: Apart) -> None:
    records = fleet.run().records
    requests, moved = records.requests, records.transfers
    two_halves = (requests.status == Status.FINISHED) & (requests.output_tokens > 1)
    if moved is None:
        assert not two_halves.any()
        return
    assert sorted(moved.row.tolist()) == np.flatnonzero(two_halves).tolist()
    assert moved.blocks.tolist() == [
        cdiv(tokens, records.block_size) for tokens in requests.input_tokens[moved.row].tolist()
    ]
    assert np.array_equal(moved.bytes, moved.blocks * BLOCK_BYTES)
    takes_over = Traits.of(fleet.groups[1].make_policy()).takes_over
    if takes_over is not None and takes_over.sends_first:
        assert np.all(moved.end_s <= requests.first_token_s[moved.row])
    else:
        assert np.array_equal(moved.ready_s, requests.first_token_s[moved.row])
    assert np.all(moved.ready_s <= moved.start_s)
    assert np.all(moved.end_s < requests.last_token_s[moved.row])
    order = np.argsort(moved.start_s, kind="stable")
    busy_s = moved.bytes / fleet.link.bytes_per_s
    assert np.all(moved.start_s[order][1:] >= (moved.start_s + busy_s)[order][:-1] - 1e-9)  # one after the other
    assert np.allclose(moved.end_s, moved.start_s + busy_s + fleet.link.latency_s)
    prefills = fleet.groups[0].replicas
    assert np.all(moved.from_replica < prefills)
    assert np.all(moved.to_replica >= prefills)
    assert np.array_equal(requests.replica[moved.row], moved.to_replica)
    _check_steps(records, prefills)


def _check_steps(records: Records, prefills: int) -> None:
    """Prefilling replicas do not decode; decoding ones compute prompts only after a preemption."""
    rows = records.rows
    assert not rows.decoding[rows.replica < prefills].any()
    if not records.requests.preemptions.any():
        assert not rows.prefilling[rows.replica >= prefills].any()
