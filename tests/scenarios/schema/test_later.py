"""Parts of the schema that are left for later: the same values, the same errors, and not imported without need."""

import subprocess
import sys
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.schema.declared import BuiltInEngine
from scenarios.schema.engine import ENGINE_KEYS, ONLY_GIVEN, NamedEngine, named_at
from scenarios.schema.loader import dump, load
from simulator.errors import InputError
from simulator.parameters import Parameter
from simulator.policies import named_policies, policy_class, policy_parameters
from tests.command import ROOT, SMALL

POLICIES = [(name, policy_parameters(policy_class(name))) for name in named_policies()]
EACH = [(policy, key, parameter) for policy, known in POLICIES for key, parameter in known.items()]


@st.composite
def values(draw: st.DrawFn, parameter: Parameter) -> object:
    """A value that a parameter may be given, right or wrong."""
    words = st.sampled_from(parameter.words or ("a word",))
    numbers = st.integers(-3, 10**10) | st.floats(-2, 1e6) | st.sampled_from([0.0, 0.5, 1.0, 0.2, 0.33])
    default = parameter.default if isinstance(parameter.default, (bool, int, float, str)) else None
    return draw(words | numbers | st.booleans() | st.none() | st.just(default))


@settings(max_examples=200)
@given(st.data())
def test_a_policy_alone_takes_what_the_schema_of_all_policies_takes(data: st.DataObject) -> None:
    policy, key, parameter = data.draw(st.sampled_from(EACH))
    value = data.draw(values(parameter))
    if named_at({"policy": policy, key: value}) is None:
        return
    whole = BuiltInEngine.model_validate({"policy": policy, key: value})
    quick = NamedEngine.model_validate({"policy": policy, key: value})
    (own,), (other,) = whole.given().items(), quick.given().items()
    assert own == other
    assert type(own[1]) is type(other[1])


@pytest.mark.parametrize("policy", named_policies())
def test_parameters_that_are_written_only_if_given_keep_the_order_of_the_schema(policy: str) -> None:
    given_keys = {
        key: parameter.default
        for key, parameter in policy_parameters(policy_class(policy)).items()
        if parameter.is_just(parameter.default)
    }
    backwards: dict[str, Any] = {"policy": policy, **dict(reversed(given_keys.items()))}
    assert named_at(backwards) is not None
    quick, whole = NamedEngine.model_validate(backwards), BuiltInEngine.model_validate(backwards)
    assert list(quick.resolved().items()) == list(whole.resolved().items())
    assert quick.model_fields_set == whole.model_fields_set


def test_what_the_policy_cannot_judge_is_told_by_the_schema_of_all() -> None:
    for engine in ({"version": 0.2}, {"max_num_seqs": 0}, {"ignore_eos": True}, {"policy": "no_such"}, {"no_key": 1}):
        assert named_at(engine) is None
    with pytest.raises(
        InputError, match=r"engine\.max_num_seqs: must be a whole number of at least 1 and at most 1,000,000,000, not 0"
    ):
        load({**_small(), "engine": {"max_num_seqs": 0}})
    patched = load({**_small(), "engine": {"policy": "vllm", "version": "0.20.1"}})
    assert patched.engine.given()["version"] == "0.20"
    assert isinstance(patched.engine, NamedEngine)
    assert patched.engine.model_fields_set == {"policy", "version"}
    assert set(ENGINE_KEYS) <= set(patched.engine.resolved()) | set(ONLY_GIVEN)


def test_a_scenario_is_the_same_however_its_parts_are_written() -> None:
    once = load(_small())
    assert load(once) == once
    assert dump(load(once.resolved())) == dump(once)


UNUSED = (
    "scenarios.schema.declared",
    "scenarios.schema.client",
    "scenarios.schema.slo",
    "scenarios.schema.fleet",
    "scenarios.schema.speculative",
    "scenarios.generate.subagents",
    "simulator.policies.sglang",
    "simulator.engine.itemized",
    "simulator.engine.itemized_apply",
    "simulator.engine.parts.connected",
    "simulator.engine.parts.drafts",
    "simulator.engine.parts.pipeline",
    "simulator.fleet.disaggregation",
)


def test_a_plain_scenario_imports_few_parts() -> None:
    code = f"""
import sys
import yaml
from scenarios.runs.runner import run
data = yaml.safe_load({SMALL!r})
del data["slo"]
run(data)
print(*(name for name in {UNUSED!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def _small() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(SMALL)
    return found
