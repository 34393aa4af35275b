"""`kv_transfer.connector: nixl`: decoding replicas pull what they lack of a prompt."""

from typing import Any

import numpy as np
import pytest

import scenarios
from simulator.errors import InputError
from simulator.results.records import Status


def served(
    transfer: dict[str, Any], *, turns: int = 1, caches: bool = True, router: Any = "round_robin", **clients: Any
) -> Any:
    """A run of two groups, of which one decodes."""
    return scenarios.run(scenario(transfer, turns=turns, caches=caches, router=router, **clients))


def scenario(
    transfer: dict[str, Any], *, turns: int = 1, caches: bool = True, router: Any = "round_robin", **clients: Any
) -> dict[str, Any]:
    """Two groups, of which one decodes."""
    decode = {"num_gpu_blocks": 3000}
    return {
        "router": router,
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200"},
        "cost": {"kind": "roofline"},
        "engine": {"policy": "chunked_prefill"},
        "fleet": [
            {"name": "p", "role": "prefill"},
            {"name": "d", "role": "decode", "hardware": decode, "engine": {"enable_prefix_caching": caches}},
        ],
        "kv_transfer": transfer,
        "workload": {
            "requests": 60,
            "classes": [
                {
                    "name": "chat",
                    "arrival": {"process": "poisson", "rate": 4},
                    "input": {"dist": "lognormal", "median": 900, "p99": 4000, "max": 6000},
                    "output": {"dist": "lognormal", "median": 60, "p99": 200, "max": 300},
                    "session": {"turns": {"dist": "fixed", "value": turns}, "context": "accumulate"},
                }
            ],
            **clients,
        },
    }


PULL = {"connector": "nixl", "bandwidth_gb_s": 25, "latency_s": 0.001}


def test_every_request_is_served_and_its_prompt_moves_once() -> None:
    run = served(PULL, caches=False)
    requests, moved = run.records.requests, run.records.transfers
    assert (requests.status == Status.FINISHED).all()
    assert sorted(moved.row) == list(range(60))
    assert (moved.blocks == -(-requests.input_tokens[moved.row] // 16)).all()
    assert (requests.first_token_s[moved.row] > moved.end_s).all()
    assert (moved.start_s[1:] >= moved.end_s[:-1] - 0.001 - 1e-9).all()


def test_what_the_decoding_side_has_is_not_moved_again() -> None:
    run = served(PULL, turns=4)
    requests, moved = run.records.requests, run.records.transfers
    assert (requests.status == Status.FINISHED).all()
    later = run.records.turns[moved.row] > 1
    whole = -(-requests.input_tokens[moved.row] // 16)
    assert (moved.blocks[~later] == whole[~later]).all()
    assert (moved.blocks[later] < whole[later]).all()
    before = served({key: PULL[key] for key in ("bandwidth_gb_s", "latency_s")}, turns=4, caches=False)
    assert moved.bytes.sum() < before.records.transfers.bytes.sum()


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a_load_that_fails_is_computed_again_or_ends_its_request(policy: str) -> None:
    run = served({**PULL, "failure_rate": 0.3, "kv_load_failure_policy": policy})
    status = run.records.requests.status
    if policy == "recompute":
        assert (status == Status.FINISHED).all()
        assert run.summary["mean_ttft_ms"] > served(PULL).summary["mean_ttft_ms"]
    else:
        assert 5 < (status == Status.ABORTED).sum() < 35
        assert np.isin(status, (Status.FINISHED, Status.ABORTED)).all()


def test_clients_that_give_up_leave_nothing_behind() -> None:
    run = served({**PULL, "bandwidth_gb_s": 0.2}, client={"timeout_s": 4})
    status = run.records.requests.status
    assert (status == Status.ABORTED).any()
    assert np.isin(status, (Status.FINISHED, Status.ABORTED)).all()


@pytest.mark.parametrize(
    ("transfer", "told"),
    [
        ({"connector": "mooncake"}, "nixl"),
        ({"failure_rate": 0.1}, "no load fails without a connector"),
        ({"connector": "nixl", "failure_rate": 2}, "at most 1"),
    ],
)
def test_bad_input_is_refused_with_its_place(transfer: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match="kv_transfer") as refused:
        served(transfer)
    assert told in str(refused.value)


def test_llm_d_prefills_little_where_it_decodes() -> None:
    """`non_cached_tokens`: what is not known of a conversation's turn is computed by the replica that decodes."""
    asked = scenario(PULL, turns=4, router={"kind": "llm_d", "non_cached_tokens": 700})
    run = scenarios.run(asked)
    requests, moved = run.records.requests, run.records.transfers
    assert moved is not None
    assert (requests.status == Status.FINISHED).all()
    here = np.setdiff1d(requests.row, moved.row)
    assert 5 < len(here) < 50
    computed = requests.input_tokens - requests.cached_tokens
    assert computed[here].max() < 700 + 64
    assert (requests.first_token_s[here] > requests.arrival_s[here]).all()
    assert scenarios.run(asked, fast_forward=False).summary == run.summary
    apart = served(PULL, turns=4, router="llm_d")
    assert sorted(apart.records.transfers.row) == list(range(60))


def test_only_who_pulls_can_prefill_by_itself() -> None:
    with pytest.raises(InputError, match="only decoding replicas that pull"):
        served({"bandwidth_gb_s": 25}, caches=False, router={"kind": "llm_d", "non_cached_tokens": 10})
