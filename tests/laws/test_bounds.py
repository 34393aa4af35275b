"""Bounds are bounds: bound <= optimum <= every policy on small cases, and no run of a random scenario betters one."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.bound.bound import at_best
from scenarios.bound.charges import Charges, Server, least_computed, measured_requests
from simulator.errors import InputError
from simulator.metrics.latency import Slo
from simulator.metrics.summary import METRICS, summarize
from simulator.policies import policy_class
from simulator.policy_traits import OptionalMembers, Traits
from simulator.request import PromptContent
from simulator.results.records import Records, Status
from simulator.timing.cost import floors_of
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.examples import examples
from tests.laws.answering import answering
from tests.laws.bounds import FEW_STATES, SCHEDULERS, bounds_of, check_case, optima_of, random_case
from tests.laws.caching import caching_scenarios, run_cached
from tests.laws.optimum import Case, least_end_s, least_sum
from tests.laws.scenarios import POLICIES, Scenario, kind, scenarios

SLO = Slo(ttft_ms=20.0, tpot_ms=8.0, e2el_ms=100.0)
FEATURES = {name: Traits.of(policy_class(kind(name))) for name in POLICIES}
CACHING = tuple(name for name in POLICIES if FEATURES[name].caches_prefixes and not FEATURES[name].has_radix_tree)


@pytest.mark.parametrize(
    "first", [0, 40, *(pytest.param(first, marks=pytest.mark.long) for first in range(80, 240, 40))]
)
def test_bound_optimum_policies(first: int) -> None:
    """Every policy sees a few of the cases: 240 cases here, ten thousand were run once."""
    broken = {}
    for seed in range(first, first + 40):
        names = tuple(SCHEDULERS[(seed + each) % len(SCHEDULERS)] for each in (0, 7, 13))
        if found := check_case(random_case(seed, FEW_STATES), names).broken:
            broken[seed] = found
    assert not broken


@pytest.mark.long
@pytest.mark.parametrize("first", range(100_000, 100_400, 40))
def test_more_cases(first: int) -> None:
    assert not [seed for seed in range(first, first + 40) if check_case(random_case(seed)).broken]


def test_the_optimum_knows_what_is_known() -> None:
    """Two prompts of one and two steps, at once: the shorter first; three answers of a step each, two at a time."""
    case = Case((0.0, 0.0), ((2, 1), (1, 1)), 1, 1, 10, Linear(1.0))
    assert least_sum(case, lambda row, got, at: at) == 1 + 3
    assert least_end_s(case) == 3
    crowd = Case((0.0, 0.0, 0.0), ((1, 1),) * 3, 2, 10, 10, Linear(1.0))
    assert least_sum(crowd, lambda row, got, at: at) == 1 + 1 + 2
    # Memory for one answer of two tokens: two steps each. Thrown out, the second has to compute its prompt again.
    tight = Case((0.0, 0.0), ((1, 2), (1, 2)), 2, 10, 2, Linear(1.0))
    assert least_end_s(tight) == 3
    assert least_sum(tight, lambda row, got, at: at if got == 1 else 0.0) == 1 + 1


def test_the_case_that_a_bound_meets() -> None:
    """One request alone: bound, optimum and run are one."""
    small = random_case(11)
    case = replace(
        small.case, arrival_s=(0.0,), lengths=((3, 2),), seqs=1, tokens=2, kv_tokens=9, cost=Linear(1.0, 0.5)
    )
    alone = replace(small, case=case)
    assert bounds_of(alone).metrics["mean_e2el_ms"].value == pytest.approx(1e3 * (2 * 1.0 + 3 * 0.5 + 1.5))
    assert optima_of(alone)["mean_e2el_ms"] == pytest.approx(bounds_of(alone).metrics["mean_e2el_ms"].value)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(150)
def test_no_policy_betters_a_bound(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    _hold(scenario, scenario.workload, scenario.run().records, caches=False)


@pytest.mark.parametrize("name", CACHING)
@given(data=st.data())
@examples(150)
def test_no_policy_betters_a_bound_with_a_prefix_cache(name: str, data: st.DataObject) -> None:
    scenario = data.draw(caching_scenarios(policy=name))
    _hold(scenario, scenario.workload, run_cached(scenario).records, caches=True)


@pytest.mark.parametrize("name", ["chunked_prefill", "continuous", "static", "preemptive"])
@given(data=st.data())
@examples(150)
def test_no_policy_betters_a_bound_where_arrivals_follow_answers(name: str, data: st.DataObject) -> None:
    drawn = data.draw(answering(name))
    drawn = replace(drawn.on(replace(drawn.workload, clients=())), max_queued_requests=None)
    run = drawn.run()
    records = run.at_clients()
    with suppress(InputError):  # an endless loop: nothing is bounded
        _hold(drawn.scenario, drawn.workload, records, caches=False)


def _hold(scenario: Scenario, workload: Workload, records: Records, *, caches: bool) -> None:
    """Hold a run against the bounds of its scenario, if it served every request whole."""
    requests = measured_requests(workload, caches=caches)
    policy = scenario.policy
    options = OptionalMembers.of(policy)
    kv_tokens = (scenario.memory.num_gpu_blocks - 1) * scenario.memory.block_size
    tokens = int(min(options.max_num_batched_tokens, kv_tokens))
    floors = tuple(floors_of(scenario.cost, tokens))
    pool = None if requests.shares else kv_tokens
    server = Server(scenario.replicas, policy.max_num_seqs, tokens, pool, caches, floors)
    found = at_best(Charges(server, requests), SLO, streams=options.traits.streams, cut=False)
    summary = summarize(records, slo=SLO)
    whole = (records.requests.status == Status.FINISHED).all()
    whole &= int(records.requests.output_tokens.sum()) == int(requests.outputs.sum())
    assert found.metrics
    for key, one in found.metrics.items():
        value = summary[key]
        if value is None or not (whole or key == "slo_attainment"):
            continue
        worse = METRICS[key].better * (one.value - float(value))
        assert worse >= -1e-9 * abs(one.value), f"{key} is {value}, the bound {one.value} by {one.by}"


def test_what_must_be_computed_in_spite_of_a_cache() -> None:
    """Tokens that another prompt or answer holds may be cached; at least one token is computed."""
    contents = [
        PromptContent(block_hashes=(1, 2, 3), hash_block_size=4),
        PromptContent(block_hashes=(1, 2, 4), hash_block_size=4),
        PromptContent(prefix_group="a", prefix_tokens=5),
        PromptContent(prefix_group="a", prefix_tokens=5),
        PromptContent(prefix_group="b", prefix_tokens=5),
        PromptContent(conversation="c"),
        PromptContent(conversation="c"),
        PromptContent(prompt_token_ids=(1, 2, 3)),
        None,
    ]
    prompt = np.array([12, 10, 9, 5, 9, 6, 20, 3, 7])
    outputs = np.array([1, 1, 1, 1, 1, 4, 2, 1, 1])
    assert least_computed(prompt, outputs, contents).tolist() == [4, 2, 4, 1, 9, 1, 10, 1, 7]
