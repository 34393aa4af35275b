"""Classes merged into one workload: what is shared, what is independent, what never moves."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.generate import GeneratedWorkload, generate
from scenarios.random_draws import stream
from simulator.errors import InputError
from simulator.workload import Workload
from tests.examples import examples

CHAT: dict[str, Any] = {
    "name": "chat",
    "arrival": {"process": "poisson", "rate": 6},
    "input": {"dist": "lognormal", "median": 350, "p99": 4000, "max": 8192},
    "output": {"dist": "empirical", "quantiles": {0.05: 41, 0.5: 129, 0.95: 451, 0.99: 601, 1.0: 1000}},
}
BATCH: dict[str, Any] = {
    "name": "batch",
    "arrival": {"process": "gamma", "rate": 2, "cv": 3.0},
    "input": {"dist": "normal", "mean": 2000, "sd": 500},
    "output": {"dist": "lognormal", "mean": 300, "cv": 1.0},
    "priority": 10,
}


def make(*classes: dict[str, Any], seed: int = 0, **keys: Any) -> Workload:
    return generate(GeneratedWorkload.model_validate({"classes": list(classes), **keys}), seed)


def without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


def rows_of(workload: Workload, name: str) -> dict[str, list[float]]:
    rows = workload.class_index == workload.class_names.index(name)
    names = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority")
    return {column: getattr(workload, column)[rows].tolist() for column in names}


def test_the_contracts_example() -> None:
    workload = make({**CHAT, "share": 1.0, "priority": 0}, requests=2000)
    assert len(workload) == 2000
    assert 2000 / workload.arrival_s[-1] == pytest.approx(6, rel=0.08)
    assert np.median(workload.input_tokens) == pytest.approx(350, rel=0.08)
    assert set(workload.max_tokens) == {1000}
    assert set(workload.priority) == {0}
    assert workload.class_names == ("chat",)
    assert workload.notes == ()
    assert next(workload.requests()).request_id == "0"


@pytest.mark.parametrize("end", [{"requests": 500}, {"duration_s": 100}])
def test_same_seed_same_bits_and_another_seed_others(end: dict[str, float]) -> None:
    first, again, other = (make(CHAT, BATCH, seed=seed, **end) for seed in (3, 3, 4))
    for name in ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority", "class_index"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
    assert not np.array_equal(first.arrival_s[:100], other.arrival_s[:100])
    assert not np.array_equal(first.input_tokens[:100], other.input_tokens[:100])


def test_same_bits_in_another_process() -> None:
    script = (
        "from scenarios.random_draws import stream;"
        "print(stream(7, 'chat', 'input').random(3).tobytes().hex())"
    )  # fmt: skip
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert other == stream(7, "chat", "input").random(3).tobytes().hex()


def test_a_second_class_moves_nothing_of_the_first() -> None:
    alone, both = make(CHAT, duration_s=200), make(BATCH, CHAT, duration_s=200)
    assert len(both) > len(alone)
    assert rows_of(both, "chat") == rows_of(alone, "chat")


def test_other_lengths_move_no_arrivals_and_other_arrivals_no_lengths() -> None:
    base = make(CHAT, duration_s=200)
    longer = make({**CHAT, "output": {"dist": "fixed", "value": 9}, "priority": 3}, duration_s=200)
    assert np.array_equal(base.arrival_s, longer.arrival_s)
    assert np.array_equal(base.input_tokens, longer.input_tokens)
    bursty = make({**CHAT, "arrival": {"process": "gamma", "rate": 9, "cv": 3.0}}, duration_s=200)
    shared = min(len(base), len(bursty))
    assert np.array_equal(base.input_tokens[:shared], bursty.input_tokens[:shared])
    assert not np.array_equal(base.arrival_s[:shared], bursty.arrival_s[:shared])


def test_fewer_requests_are_the_first_of_more() -> None:
    few, many = make(CHAT, BATCH, requests=300, max_tokens=4000), make(CHAT, BATCH, requests=3000, max_tokens=4000)
    for name in ("arrival_s", "input_tokens", "output_tokens", "class_index"):
        assert np.array_equal(getattr(few, name), getattr(many, name)[:300])


def test_input_output_and_arrivals_are_independent() -> None:
    workload = make(CHAT, {**CHAT, "name": "twin"}, requests=40_000)
    chat, twin = rows_of(workload, "chat"), rows_of(workload, "twin")
    shared = min(len(chat["arrival_s"]), len(twin["arrival_s"]))
    pairs: list[tuple[Any, Any]] = [
        (chat["input_tokens"], chat["output_tokens"]),
        (np.diff(chat["arrival_s"]), chat["input_tokens"][1:]),
        (chat["input_tokens"][:shared], twin["input_tokens"][:shared]),
        (np.diff(chat["arrival_s"][:shared]), np.diff(twin["arrival_s"][:shared])),
    ]
    for left, right in pairs:
        assert abs(np.corrcoef(left, right)[0, 1]) < 4 / math.sqrt(len(left))


def test_own_rates_superpose() -> None:
    workload = make(CHAT, BATCH, requests=20_000)
    assert np.mean(workload.class_index == 0) == pytest.approx(6 / 8, abs=0.02)
    assert 20_000 / workload.arrival_s[-1] == pytest.approx(8, rel=0.04)


def test_shares_deal_the_workloads_arrivals() -> None:
    classes = [without({**CHAT, "share": 3.0}, "arrival"), without({**BATCH, "share": 1.0}, "arrival")]
    arrival = {"process": "gamma", "rate": 8, "cv": 0.2}
    workload = make(*classes, arrival=arrival, requests=40_000)
    to_chat = workload.class_index == 0
    assert to_chat.mean() == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / 40_000))
    # dealt one by one: whether one request is a chat says nothing about the next
    assert abs(np.corrcoef(to_chat[1:], to_chat[:-1])[0, 1]) < 4 / math.sqrt(40_000)
    gaps = np.diff(workload.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(0.2, rel=0.02)
    # the stream itself is the one that a single class would get
    assert np.array_equal(make(classes[0], arrival=arrival, requests=40_000).arrival_s, workload.arrival_s)
    # equal shares where none is given
    equal = make(without(CHAT, "arrival"), without(BATCH, "arrival"), arrival=arrival, requests=40_000)
    assert equal.class_index.mean() == pytest.approx(0.5, abs=0.01)


def test_a_class_beside_the_shared_stream_has_its_own_rate() -> None:
    workload = make(
        without(CHAT, "arrival"), BATCH, arrival={"process": "constant", "rate": 10}, duration_s=1000, seed=2
    )
    assert len(rows_of(workload, "chat")["arrival_s"]) == 10_000
    assert len(rows_of(workload, "batch")["arrival_s"]) == pytest.approx(2000, rel=0.2)


def test_ties_go_in_the_order_of_the_classes() -> None:
    ticks = [
        {**CHAT, "name": name, "arrival": {"process": "constant", "rate": rate}} for name, rate in (("z", 1), ("a", 2))
    ]
    workload = make(*ticks, duration_s=2)
    assert workload.arrival_s.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0, 1.5]
    assert [workload.class_names[index] for index in workload.class_index] == ["z", "a", "a", "z", "a", "a"]


def test_max_tokens_is_the_first_that_is_known() -> None:
    bounded = {**CHAT, "name": "bounded"}
    capped = {**CHAT, "name": "capped", "max_tokens": 450}
    drawn = {**BATCH, "name": "drawn"}
    workload = make(bounded, capped, drawn, duration_s=200)
    assert set(rows_of(workload, "bounded")["max_tokens"]) == {1000}
    assert set(rows_of(workload, "capped")["max_tokens"]) == {450}
    assert set(rows_of(workload, "drawn")["max_tokens"]) == {max(rows_of(workload, "drawn")["output_tokens"])}
    everywhere = make(bounded, capped, drawn, duration_s=200, max_tokens=700)
    assert [set(rows_of(everywhere, name)["max_tokens"]) for name in ("bounded", "capped", "drawn")] == [
        {700},
        {450},
        {700},
    ]


def test_outputs_above_the_cap_are_cut_and_counted() -> None:
    free, capped = make(CHAT, requests=5000), make({**CHAT, "max_tokens": 400}, requests=5000)
    assert np.array_equal(capped.output_tokens, np.minimum(free.output_tokens, 400))
    above = int(np.count_nonzero(free.output_tokens > 400))
    assert above > 100
    assert capped.notes == (f"class chat: {above} of 5000 outputs cut at max_tokens 400",)


def test_a_class_that_never_gets_a_request() -> None:
    rare = {**BATCH, "name": "rare", "arrival": {"process": "poisson", "rate": 1e-6}}
    workload = make(CHAT, rare, requests=50)
    assert set(workload.class_index) == {0}
    assert workload.class_names == ("chat", "rare")


def test_a_short_duration_may_be_empty() -> None:
    assert len(make({**CHAT, "arrival": {"process": "poisson", "rate": 1e-6}}, duration_s=1.0)) == 0


def test_requests_are_reached_through_silence_and_bursts() -> None:
    profile = [[0, 1e-3], [1000, 1e-3], [1000, 0], [5000, 0], [5000, 1]]
    late = make({**CHAT, "arrival": {"process": "poisson", "rate": 6, "profile": profile}}, requests=1000)
    assert len(late) == 1000
    assert late.arrival_s[-1] == pytest.approx(5000 + 1000 / 6, rel=0.01)
    on_off = {"process": "onoff", "rate": 100, "on_s": 5, "off_s": 500}
    assert len(make({**CHAT, "arrival": on_off}, requests=5000)) == 5000
    # one class's traffic ends, the other's goes on
    ending = {**BATCH, "arrival": {"process": "poisson", "rate": 6, "profile": [[0, 1], [10, 0]]}}
    assert len(make(CHAT, ending, requests=1000)) == 1000


def test_limits_say_so() -> None:
    with pytest.raises(InputError, match="at most 50000000"):
        make({**CHAT, "arrival": {"process": "poisson", "rate": 1000}}, duration_s=1e6)
    # few on average, but an on period holds a billion: only what is asked for is drawn
    flood = {**CHAT, "arrival": {"process": "onoff", "rate": 1e9, "on_s": 1.0, "off_s": 1e9}}
    assert len(make(flood, requests=7)) == 7
    with pytest.raises(InputError, match="seed -1 is negative"):
        make(CHAT, requests=1, seed=-1)


ARRIVALS = st.sampled_from(
    [
        {"process": "poisson", "rate": 3.0},
        {"process": "constant", "rate": 1.0},
        {"process": "gamma", "rate": 2.0, "cv": 5.0},
        {"process": "onoff", "rate": 9.0, "on_s": 2.0, "off_s": 5.0},
        {"process": "weibull", "rate": 2.0, "cv": 0.5, "profile": [[0, 1], [20, 0], [40, 3]]},
    ]
)


@examples(50)
@given(st.lists(ARRIVALS, min_size=1, max_size=4), st.integers(1, 400), st.integers(0, 2**63))
def test_any_workload_is_sorted_and_whole(processes: list[dict[str, Any]], requests: int, seed: int) -> None:
    classes = [{**(CHAT if i % 2 else BATCH), "name": f"c{i}", "arrival": p} for i, p in enumerate(processes)]
    workload = make(*classes, requests=requests, seed=seed)
    assert len(workload) == requests
    assert np.all(np.diff(workload.arrival_s) >= 0)
    assert workload.arrival_s[0] >= 0
    assert np.isfinite(workload.arrival_s).all()
    assert workload.input_tokens.min() >= 1
    assert workload.output_tokens.min() >= 1
    assert np.all(workload.output_tokens <= workload.max_tokens)
    # each class is what it would be alone, as far as it goes
    first = rows_of(workload, "c0")["arrival_s"]
    assert make(classes[0], requests=max(len(first), 1), seed=seed).arrival_s[: len(first)].tolist() == first
