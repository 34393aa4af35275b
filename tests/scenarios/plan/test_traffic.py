"""Traffic at any rate: the same requests, and the scenario that is written replays them."""

from pathlib import Path

import numpy as np
import pytest

from scenarios.assembly.workloads import build_workload
from scenarios.plan.trial import Traffic
from scenarios.schema.loader import load
from simulator.errors import InputError
from tests.scenarios.plan.cases import chat

TRACE = "arrival_time_s,input_tokens,output_tokens\n" + "".join(
    f"{at / 7 + (at % 5) ** 2 / 11:.6f},{10 + at % 90},{1 + at % 40}\n" for at in range(300)
)
CLASS = {"name": "a", "input": {"dist": "fixed", "value": 9}, "output": {"dist": "uniform", "min": 2, "max": 9}}
GENERATED = {
    "shared": {"requests": 200, "arrival": {"process": "gamma", "rate": 3, "cv": 2}, "classes": [CLASS]},
    "own": {
        "requests": 200,
        "classes": [
            {**CLASS, "arrival": {"process": "poisson", "rate": 3}},
            {**CLASS, "name": "b", "arrival": {"process": "constant", "rate": 1}},
        ],
    },
    "preset": {"preset": "chat", "rate": 3, "requests": 200},
    "mean": {
        "requests": 200,
        "arrival": {"rate": 2},
        "classes": [{**CLASS, "arrival": {"process": "poisson", "rate": 3}}],
    },
}


@pytest.mark.parametrize("kind", GENERATED)
def test_drawn_requests_stay_the_same(kind: str) -> None:
    scenario = chat(workload=GENERATED[kind])
    traffic = Traffic(scenario)
    slow, fast = traffic.workload(2.0, 0), traffic.workload(6.0, 0)
    assert (slow.input_tokens == fast.input_tokens).all()
    assert (slow.output_tokens == fast.output_tokens).all()
    close = 0.05 if kind == "preset" else 1e-9  # its rate drifts by the clock, not by the request
    np.testing.assert_allclose(slow.arrival_s / 3, fast.arrival_s, rtol=close, atol=1e-12)
    assert len(fast) / fast.arrival_s[-1] == pytest.approx(6.0, rel=0.35)


@pytest.mark.parametrize("kind", [*GENERATED, "trace", "redrawn"])
def test_the_scenario_at_a_rate_has_these_requests_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE, encoding="utf-8")
    trace = {"path": str(tmp_path / "t.csv")}
    workload = {
        **GENERATED,
        "trace": {"trace": trace},
        "redrawn": {"trace": {**trace, "arrival": {"process": "poisson", "rate": 2}}},
    }[kind]
    scenario = chat(workload=workload, slo={"ttft_ms": 1})
    traffic = Traffic(scenario)
    for rate in (0.031, 4.7, 40.0):
        ours = traffic.workload(rate, 0)
        again = build_workload(load(traffic.scenario_at(scenario, rate).model_dump(exclude_unset=True)))
        assert (ours.arrival_s == again.arrival_s).all()
        assert (ours.output_tokens == again.output_tokens).all()


def test_a_trace_has_the_rate_of_its_arrivals(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE, encoding="utf-8")
    scenario = chat(workload={"trace": {"path": str(tmp_path / "t.csv"), "rate_scale": 2.0}})
    traffic = Traffic(scenario)
    own = build_workload(scenario).arrival_s
    assert traffic.rate == pytest.approx((len(own) - 1) / (own[-1] - own[0]), rel=1e-4)
    half = traffic.workload(traffic.rate / 2, 0).arrival_s
    np.testing.assert_allclose(half, own * 2, rtol=1e-4)


def test_more_load_than_a_trace_has_is_more_users(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE, encoding="utf-8")
    trace = {"path": str(tmp_path / "t.csv")}
    scenario = chat(workload={"trace": trace})
    traffic, own = Traffic(scenario), build_workload(scenario)
    assert traffic.words(traffic.rate) == ""
    assert "played 0.5 times as fast" in traffic.words(traffic.rate / 2)
    assert "3 copies of the trace" in traffic.words(traffic.rate * 3)
    assert "each shifted anywhere in it" in traffic.words(traffic.rate * 3)
    more = traffic.workload(traffic.rate * 3, 0)
    assert len(more) == pytest.approx(3 * len(own), rel=0.01)
    assert more.arrival_s[-1] == pytest.approx(own.arrival_s[-1], rel=0.02), "users, not speed"
    assert {*own.arrival_s.tolist()} < {*more.arrival_s.tolist()}
    near = traffic.in_step(traffic.rate * 3)
    assert near is not None
    assert "each shifted by at most 20 s" in near.words(traffic.rate * 3)
    assert (near.workload(traffic.rate * 3, 0).arrival_s != more.arrival_s).any()
    assert traffic.in_step(traffic.rate) is None
    faster = Traffic(chat(workload={"trace": {**trace, "rate_scale": 2.0}}))
    assert faster.copies(faster.rate * 3) is None, "the scenario's own way stays"
    assert "played 6 times as fast" in faster.words(faster.rate * 3)
    given = Traffic(chat(workload={"trace": {**trace, "copies": 4, "shift_s": 3}}))
    assert given.rate == pytest.approx(4 * traffic.rate, rel=1e-3)
    assert given.in_step(given.rate) is None
    assert "shifted by at most 3 s" in given.words(given.rate)
    assert len(given.workload(given.rate / 8, 0)) == len(own)


def test_a_piece_is_the_busiest_stretch() -> None:
    traffic = Traffic(chat())
    whole, piece = traffic.workload(10.0, 0), traffic.workload(10.0, 0, 50)
    gaps = [whole.arrival_s[i + 49] - whole.arrival_s[i] for i in range(len(whole) - 49)]
    first = int(np.argmin(gaps))
    assert len(piece) == 50
    assert (piece.input_tokens == whole.input_tokens[first : first + 50]).all()
    assert piece.arrival_s[0] == 0
    assert piece.arrival_s[-1] == pytest.approx(min(gaps))


def test_closed_loops_have_no_rate() -> None:
    loop = {"requests": 20, "arrival": {"process": "closed_loop", "concurrency": 2}, "classes": [CLASS]}
    with pytest.raises(InputError, match="they have no rate"):
        Traffic(chat(workload=loop))


def test_a_trace_that_comes_at_once_has_no_rate(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_time_s,input_tokens,output_tokens\n0,5,5\n0,5,5\n", encoding="utf-8")
    with pytest.raises(InputError, match="arrive at once"):
        Traffic(chat(workload={"trace": {"path": str(tmp_path / "t.csv")}}))
