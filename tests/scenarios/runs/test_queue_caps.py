"""vLLM's caps on the queue in whole runs: each request against what its server had at its arrival, by the records."""

from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.runs.result import Result
from simulator.errors import InputError
from simulator.results.records import Status
from tests.scenarios.runs.test_runner import small

REQS = "the queue is full: max_num_queued_reqs is 6"
TOKENS = "the queue is full of tokens: max_num_queued_tokens is 3000"
CAPS = {"engine__max_num_queued_reqs": 6, "engine__max_num_queued_tokens": 3000}
ENGINES: dict[str, dict[str, Any]] = {
    "sync": {"engine__policy": "chunked_prefill"},
    "async": {"engine__policy": "vllm", "engine__async_scheduling": True},
    "batches": {"engine__policy": "static"},
    "streamed batches": {"engine__policy": "static", "engine__stream": True},
}


def crowded(seqs: int = 4, **changes: Any) -> Result:
    return scenarios.run(small(engine__max_num_seqs=seqs, **changes))


def expected(result: Result, *, one_server: bool) -> dict[int, str]:
    """The reasons by row that the rule gives, with ends and first tokens as recorded; an abort ends as it is sent."""
    records, found = result.records, {}
    requests = records.requests
    ended_s = requests.last_token_s.copy()
    ended_s[requests.status != Status.FINISHED] = np.inf
    if records.calls is not None:
        left_s = records.calls.left_s
        ended_s = np.where(np.isnan(left_s), ended_s, np.minimum(left_s, ended_s))
    admitted = np.zeros(len(ended_s), dtype=np.bool_)
    for row, arrival_s in enumerate(requests.arrival_s):
        mine = np.flatnonzero(admitted[:row] & (one_server | (requests.replica[:row] == requests.replica[row])))
        unfinished = mine[~(ended_s[mine] < arrival_s)]
        waiting = unfinished[~(requests.first_token_s[unfinished] < arrival_s)]
        if len(unfinished) + 1 > 6:
            found[row] = REQS
        elif requests.input_tokens[waiting].sum() >= 3000:
            found[row] = TOKENS
        else:
            admitted[row] = True
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fast_forward", [True, False])
def test_each_request_is_rejected_by_the_rule(engine: str, fast_forward: bool) -> None:
    result = scenarios.run(small(engine__max_num_seqs=4, **ENGINES[engine], **CAPS), fast_forward=fast_forward)
    told = result.records.reject_reasons
    assert told == expected(result, one_server=True)
    assert 0 < len(told) < len(result.requests)


def test_either_cap_turns_requests_away() -> None:
    assert crowded().summary["rejected"] == 0
    for key, value in CAPS.items():
        told = set(crowded(**{key: value}).records.reject_reasons.values())
        assert told == {REQS if key.endswith("reqs") else TOKENS}
    nobody = crowded(engine__max_num_queued_tokens=0)
    assert nobody.summary["rejected"] == len(nobody.requests)


@pytest.mark.parametrize("router", ["round_robin", "least_loaded", "vllm_dp"])
def test_ranks_behind_one_server_share_its_caps_and_others_do_not(router: str) -> None:
    result = crowded(1, replicas=2, router=router, **CAPS)
    told = result.records.reject_reasons
    assert told
    assert told == expected(result, one_server=router == "vllm_dp")


def test_the_balancer_is_not_asked_about_a_rejected_request() -> None:
    """Its turn among equals would move on: the admitted alone go round."""
    result = crowded(replicas=3, router="vllm_dp", engine__max_num_queued_reqs=6)
    rejected = result.records.requests.status == Status.REJECTED
    assert rejected.any()
    assert (result.records.requests.replica[rejected] == 0).all()


def test_an_abort_counts_as_it_is_sent() -> None:
    result = crowded(workload__client={"timeout_s": 0.15}, **CAPS)
    assert result.summary["aborted"] > 0
    assert result.records.reject_reasons == expected(result, one_server=True)


def test_a_rejected_client_may_try_again() -> None:
    again = crowded(workload__client={"max_attempts": 3, "backoff_s": 0.5}, engine__max_num_queued_tokens=3000)
    assert again.records.calls is not None
    assert again.records.calls.attempt.max() > 1


def test_bad_caps_are_told() -> None:
    with pytest.raises(InputError, match=r"engine\.max_num_queued_tokens"):
        scenarios.load(small(engine__max_num_queued_tokens=-1))
    many = {"kind": "vllm_dp", "api_server_count": 2}
    with pytest.raises(InputError, match=r"engine\.max_num_queued_tokens: .*: each API server has a cap"):
        crowded(replicas=2, router=many, engine__max_num_queued_tokens=5)
    halves = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]
    with pytest.raises(InputError, match="a cap on one server says nothing of halves of requests"):
        crowded(fleet=halves, engine__max_num_queued_reqs=5)
    unlike = [{"name": str(most), "engine": {"max_num_queued_reqs": most}} for most in (5, 6)]
    with pytest.raises(InputError, match="other caps on its queue"):
        crowded(fleet=unlike, router="vllm_dp")
