"""The keys of serving systems in a scenario's engine."""

import dataclasses
from typing import Any

import pytest

from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.policies import load_policy, policy_class
from tests.scenarios.schema.test_scenario import scenario

KEYS: dict[str, dict[str, Any]] = {
    "tensorrt_llm": {"capacity_policy": "max_utilization", "enable_chunked_prefill": False, "order": "priority"},
    "tgi": {
        "waiting_served_ratio": 1.2,
        "max_waiting_tokens": 0,
        "max_batch_prefill_tokens": 4096,
        "max_batch_total_tokens": 100_000,
    },
    "fastserve": {"min_quantum_tokens": 2, "prompt_tokens_per_quantum": 512, "starve_limit_s": 0.5},
}


@pytest.mark.parametrize("policy", KEYS)
def test_keys_reach_the_policy(policy: str) -> None:
    engine = scenario(engine={"policy": policy, **KEYS[policy]}).engine
    made = load_policy(engine.policy, engine.given())
    assert {key: getattr(made, key) for key in KEYS[policy]} == KEYS[policy]


@pytest.mark.parametrize("policy", KEYS)
def test_defaults_are_the_policys_own(policy: str) -> None:
    declared = dataclasses.fields(policy_class(policy))  # type: ignore[arg-type] # a policy is a dataclass
    fields = [field for field in declared if field.init]  # the others are worked out from these
    cost = {"kind": "linear", "base_s": 0.01, "per_token_s": 0, "per_context_token_s": 0}
    resolved = scenario(engine={"policy": policy}, cost=cost).engine.resolved()
    assert {field.name: resolved[field.name] for field in fields} == {f.name: f.default for f in fields}


@pytest.mark.parametrize("policy", KEYS)
@pytest.mark.parametrize("other", [*KEYS, "static"])
def test_other_policies_say_that_they_do_not_use_them(policy: str, other: str) -> None:
    for key, value in KEYS[policy].items():
        if key not in {field.name for field in dataclasses.fields(policy_class(other))}:  # type: ignore[arg-type] # as above
            with pytest.raises(InputError, match=f"policy {other} does not use '{key}'"):
                load_policy(other, {key: value})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"capacity_policy": "no_evict"}, "unknown capacity_policy 'no_evict'"),
        ({"waiting_served_ratio": -0.1}, "waiting_served_ratio: must be"),
        ({"max_waiting_tokens": -1}, "max_waiting_tokens: must be"),
        ({"max_batch_prefill_tokens": 0}, "max_batch_prefill_tokens: must be"),
        ({"max_batch_total_tokens": 0.5}, "max_batch_total_tokens: must be"),
        ({"min_quantum_tokens": 0}, "min_quantum_tokens: must be"),
        ({"prompt_tokens_per_quantum": 0}, "prompt_tokens_per_quantum: must be"),
        ({"starve_limit_s": 0}, "starve_limit_s: must be"),
        ({"order": "mlfq"}, "unknown order 'mlfq'"),
    ],
)
def test_values_out_of_range(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        scenario(engine=keys)


@pytest.mark.parametrize("policy", KEYS)
def test_a_scenario_runs_under_it(policy: str) -> None:
    import scenarios

    found = load("quickstart", [f"engine.policy={policy}", "workload.requests=40"])
    summary = scenarios.run(found).summary
    assert summary["completed"] == 40
    assert summary["rejected"] == summary["unfinished"] == 0
