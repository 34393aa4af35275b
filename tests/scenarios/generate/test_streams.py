"""What a copula, a prefix, a preset or a shape moves, and what it leaves as it was: streams by class and purpose."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios
from scenarios.generate import GeneratedWorkload, generate
from scenarios.traces import read_trace
from scenarios.traces.convert import write_native
from scenarios.traces.options import TraceOptions
from simulator.request import PromptContent
from simulator.workload import Workload
from tests.examples import examples

COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority")
LENGTHS = st.sampled_from(
    [
        {"dist": "uniform", "min": 5, "max": 900},
        {"dist": "lognormal", "median": 90, "p99": 900},
        {"dist": "normal", "mean": 500, "sd": 90},
        {"dist": "empirical", "values": [900, 3, 40, 40, 7]},
        {"dist": "empirical", "quantiles": {0.1: 5, 0.9: 50}},
        {"dist": "lognormal_pareto", "mu": 4, "sigma": 1, "tail_share": 0.1, "alpha": 2},
    ]
)
ARRIVALS = st.sampled_from(
    [
        {"process": "poisson", "rate": 3},
        {"process": "gamma", "rate": 3, "cv": 2},
        {"process": "onoff", "rate": 9, "on_s": 5, "off_s": 5},
        {"process": "mmpp", "rate": 2, "states": [[1, 9], [5, 3], [0, 3]]},
        {"process": "poisson", "rate": 3, "profile": {"kind": "spike", "factor": 4, "start_s": 10, "duration_s": 9}},
    ]
)
CORR = st.sampled_from([-0.9, -0.2, 0.4, 1.0])
PREFIX = st.fixed_dictionaries(
    {"groups": st.integers(1, 9), "tokens": st.integers(1, 99), "zipf": st.sampled_from([0.0, 1.0])}
)


def make(*classes: dict[str, Any], seed: int = 0, **keys: Any) -> Workload:
    return generate(GeneratedWorkload.model_validate({"classes": list(classes), "duration_s": 60, **keys}), seed)


def columns_of(workload: Workload, name: str) -> dict[str, list[float]]:
    rows = workload.class_index == workload.class_names.index(name)
    return {column: getattr(workload, column)[rows].tolist() for column in COLUMNS}


def content_of(workload: Workload, name: str) -> list[PromptContent | None]:
    of_class = (workload.class_index == workload.class_names.index(name)).tolist()
    return [None if workload.content is None else workload.content[row] for row, mine in enumerate(of_class) if mine]


@examples(60)
@given(ARRIVALS, LENGTHS, LENGTHS, CORR, PREFIX, st.integers(0, 2**32))
def test_a_class_that_comes_or_changes_moves_nothing_of_another(
    arrival: dict[str, Any], inputs: dict[str, Any], outputs: dict[str, Any], corr: float, prefix: Any, seed: int
) -> None:
    mine = {"name": "mine", "arrival": arrival, "input": inputs, "output": outputs, "corr": corr, "prefix": prefix}
    alone = make(mine, seed=seed)
    others: list[dict[str, Any]] = [
        {**mine, "name": "twin"},
        {**mine, "name": "twin", "corr": 0, "prefix": None},
        {"name": "ten", "preset": "multi-tenant", "rate": 9},
        {"name": "chat", "preset": "chat", "prefix": {**prefix, "name": "mine"}},
    ]
    for other in others:
        both = make(other, mine, seed=seed)
        assert columns_of(both, "mine") == columns_of(alone, "mine")
        assert content_of(both, "mine") == alone.content


@examples(60)
@given(ARRIVALS, LENGTHS, LENGTHS, CORR, PREFIX, st.integers(0, 2**32))
def test_a_feature_moves_its_own_column_alone(
    arrival: dict[str, Any], inputs: dict[str, Any], outputs: dict[str, Any], corr: float, prefix: Any, seed: int
) -> None:
    plain = {"name": "c", "arrival": arrival, "input": inputs, "output": outputs, "max_tokens": 4000}
    base = make(plain, seed=seed)
    joint = make({**plain, "corr": corr}, seed=seed)
    assert np.array_equal(joint.arrival_s, base.arrival_s)
    assert np.array_equal(joint.input_tokens, base.input_tokens)
    shared = make({**plain, "prefix": prefix}, seed=seed)
    assert np.array_equal(shared.arrival_s, base.arrival_s)
    assert np.array_equal(shared.input_tokens, base.input_tokens + prefix["tokens"])
    assert np.array_equal(shared.output_tokens, base.output_tokens)
    # switched off, in so many words: nothing
    off = make({**plain, "corr": 0.0, "prefix": None}, seed=seed)
    assert columns_of(off, "c") == columns_of(base, "c")
    assert off.content is None
    # both: each as it is alone
    both = make({**plain, "corr": corr, "prefix": prefix}, seed=seed)
    assert np.array_equal(both.output_tokens, joint.output_tokens)
    assert both.content == shared.content


@examples(40)
@given(ARRIVALS, LENGTHS, LENGTHS, CORR, PREFIX, st.integers(0, 2**32))
def test_fewer_requests_are_the_first_of_more(
    arrival: dict[str, Any], inputs: dict[str, Any], outputs: dict[str, Any], corr: float, prefix: Any, seed: int
) -> None:
    entry = {"name": "c", "arrival": arrival, "input": inputs, "output": outputs, "corr": corr, "prefix": prefix}
    few, many = (make(entry, seed=seed, duration_s=None, requests=n, max_tokens=4000) for n in (40, 200))
    for column in COLUMNS:
        assert np.array_equal(getattr(few, column), getattr(many, column)[:40])
    assert few.content == (many.content or [])[:40]


def test_a_copula_makes_other_outputs() -> None:
    plain = {"name": "c", "arrival": {"process": "poisson", "rate": 9}, "input": BODY, "output": BODY}
    assert not np.array_equal(make(plain).output_tokens, make({**plain, "corr": 0.5}).output_tokens)


BODY = {"dist": "lognormal", "median": 90, "p99": 900}
CLASS = {"name": "c", "arrival": {"process": "poisson", "rate": 9}, "input": BODY, "output": BODY}


def texts(workload: Workload, name: str) -> set[str | None]:
    return {content.prefix_group for content in content_of(workload, name) if content is not None}


def test_prefixes_are_named_by_class_or_by_a_name_of_their_own() -> None:
    groups = {"groups": 3, "tokens": 32}
    shared = {**groups, "name": "manual"}
    workload = make(
        {**CLASS, "name": "a", "prefix": groups},
        {**CLASS, "name": "b", "prefix": shared},
        {**CLASS, "name": "d", "prefix": shared},
        {**CLASS, "name": "bare"},
    )
    assert texts(workload, "a") == {"a-1", "a-2", "a-3"}
    assert texts(workload, "b") == texts(workload, "d") == {"manual-1", "manual-2", "manual-3"}
    assert content_of(workload, "bare") == [None] * int(np.count_nonzero(workload.class_index == 3))
    assert all(content is None or content.prefix_tokens == 32 for content in workload.content or ())


def test_prefixes_are_drawn_apart_from_all_else() -> None:
    """Which text a prompt has says nothing of its length, nor of the text of another class's prompt."""
    entry = {**CLASS, "prefix": {"groups": 2, "tokens": 1}, "arrival": {"process": "poisson", "rate": 90}}
    workload = make({**entry, "name": "a"}, {**entry, "name": "b"})
    first, second = (
        np.array(
            [content is not None and content.prefix_group == f"{name}-1" for content in content_of(workload, name)]
        )
        for name in "ab"
    )
    shared = min(len(first), len(second))
    columns = columns_of(workload, "a")
    for other in (second[:shared], columns["input_tokens"][:shared], columns["output_tokens"][:shared]):
        assert abs(np.corrcoef(first[:shared], other)[0, 1]) < 4 / np.sqrt(shared)


def test_prefixes_hit_in_a_prefix_cache() -> None:
    """One text of 160 tokens, blocks of 16: every prompt but the first finds its ten blocks."""
    entry = {**CLASS, "input": {"dist": "fixed", "value": 16}, "prefix": {"tokens": 160}}
    data = {
        "name": "shared",
        "workload": {"requests": 200, "classes": [entry]},
        "engine": {"enable_prefix_caching": True},
    }
    summary = scenarios.run(data).summary
    assert summary["prefix_cache_hit_rate"] == pytest.approx(199 * 160 / (200 * 176), abs=0.01)
    own = scenarios.run({**data, "workload": {"requests": 200, "classes": [{**entry, "prefix": None}]}}).summary
    assert own["prefix_cache_hit_rate"] == 0


@pytest.mark.parametrize("ending", ["trace.csv.gz", "trace.jsonl"])
def test_prefixes_survive_as_a_native_trace(ending: str, tmp_path: Any) -> None:
    drawn = make({**CLASS, "prefix": {"groups": 5, "tokens": 48, "zipf": 1}}, {**CLASS, "name": "bare"})
    write_native(drawn, tmp_path / ending)
    read = read_trace(tmp_path / ending, TraceOptions())
    assert read.content == drawn.content
    assert np.array_equal(read.input_tokens, drawn.input_tokens)


@pytest.mark.parametrize(
    "make_data",
    [
        lambda preset: {"preset": preset, "rate": 9, "duration_s": 60},
        lambda preset: {"duration_s": 60, "classes": [{"name": "mine", "preset": preset, "rate": 9}]},
    ],
    ids=["workload", "class"],
)
@pytest.mark.parametrize("preset", ["chat", "code", "long-context", "reasoning", "multi-tenant"])
def test_fast_forward_equals_stepwise_on_every_preset(preset: str, make_data: Callable[[str], dict[str, Any]]) -> None:
    data = {"name": "x", "workload": {**make_data(preset), "duration_s": 8}, "hardware": {"gpu": "h200"}}
    fast, slow = (scenarios.run(data, fast_forward=forward) for forward in (True, False))
    assert fast.summary == slow.summary
    assert fast.requests.equals(slow.requests)
