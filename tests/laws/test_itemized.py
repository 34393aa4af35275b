"""Law: the batch as sums writes the same bytes as the batch walked through request by request, without drafts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios
from scenarios.check.law_trial import differences
from simulator.policies import policy_class
from simulator.policy_traits import Traits
from simulator.results.records import Records
from tests.examples import examples
from tests.laws.itemized import comparable, first_steps, one_by_one
from tests.laws.scenarios import POLICIES, kind
from tests.laws.scenarios import scenarios as drawn

# SGLang's drafts are another engine: its steps are no sums that drafts are added to.
NAMES = [name for name in POLICIES if kind(name) == "chunked_prefill"]
# Runs of the library without parts: no drafts, adapters, images, connector, pipeline, groups of layers.
LIBRARY = (
    *("azure-conv", "chunk-size", "claim-12-chunk-against-latency", "claim-15-four-systems", "lockstep-cpu"),
    *("memory-pressure", "quickstart", "ragged-gpt2", "study-retries", "tables-a100", "tables-h100-tp8"),
)
QUICK = ("ragged-gpt2", "tables-a100")


def test_policies_are_those_that_plan_with_drafts() -> None:
    assert {kind(name) for name in POLICIES if Traits.of(policy_class(kind(name))).verifies_drafts} == {
        "chunked_prefill", "sglang",
    }  # fmt: skip


def unequal(fast: Records, slow: Records) -> list[str]:
    """In what the two differ; `comparable` says what both have."""
    at = first_steps(fast)
    return differences(comparable(fast, at), comparable(slow, at))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@examples(300)
def test_itemized_is_sums(name: str, data: st.DataObject) -> None:
    scenario = data.draw(drawn(name))
    fast = scenario.run()
    with pytest.MonkeyPatch.context() as patch, one_by_one(patch) as made:
        slow = scenario.run()
    assert len(made) == scenario.replicas
    assert unequal(fast.records, slow.records) == []


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.long]) for n in LIBRARY])
def test_itemized_is_sums_in_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = scenarios.run(name)
    with one_by_one(monkeypatch) as made:
        slow = scenarios.run(name)
    assert made
    assert unequal(fast.records, slow.records) == []
