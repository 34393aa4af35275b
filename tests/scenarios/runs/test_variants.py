"""`--policies` with settings, and `--set` of keys that not every policy has."""

from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.runs.variants import as_variant, split_variants
from simulator.errors import InputError
from tests.scenarios.runs.test_runner import GREEDY, small, write_policy


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a, b:x=1", ["a", "b:x=1"]),
        ("a:w={chat: 2, batch: 1},b", ["a:w={chat: 2, batch: 1}", "b"]),
        ("a:x='1,2',b", ["a:x='1,2'", "b"]),
        ("a:x=[1, 2]:y=3,,", ["a:x=[1, 2]:y=3"]),
    ],
)
def test_commas_part_variants_outside_of_brackets_and_quotes(text: str, parts: list[str]) -> None:
    assert split_variants(text) == parts


@pytest.mark.parametrize(
    ("source", "policy", "settings"),
    [
        ("static", "static", {}),
        ("chunked_prefill:max_num_seqs=64:order=sjf", "chunked_prefill", {"max_num_seqs": 64, "order": "sjf"}),
        ("chunked_prefill:engine.max_num_seqs=64", "chunked_prefill", {"max_num_seqs": 64}),
        ("./a b/p.py:Mine:depth=2.5", "./a b/p.py:Mine", {"depth": 2.5}),
        ("./p.py:Mine", "./p.py:Mine", {}),
        ("x:class_weights={chat: 2, b: 1}:order=fair", "x", {"class_weights": {"chat": 2, "b": 1}, "order": "fair"}),
        ({"policy": "static", "max_num_seqs": 3}, "static", {"max_num_seqs": 3}),
    ],
)
def test_a_variant_is_a_policy_and_its_settings(source: Any, policy: str, settings: dict[str, Any]) -> None:
    found = as_variant(source)
    assert (found.policy, found.settings) == (policy, settings)


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        (["chunked_prefill:max_num_seq=3"], "mean `max_num_seqs`"),
        (["static:order=fcfs"], "static does not take order"),
        (["static:stream"], "not of the form key=value"),
        (["static:max_num_seqs=2:max_num_seqs=3"], "max_num_seqs is given twice"),
        (["static:max_num_seqs=x"], "static:max_num_seqs=x: engine.max_num_seqs: must be a whole number"),
        (["chunked_prefill:policy=static"], "a variant has one policy"),
        (["static", "static:max_num_seqs=8"], "static:max_num_seqs=8 is the same as static"),
        ([{"max_num_seqs": 8}], "no policy in"),
    ],
)
def test_bad_variants(policies: list[Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenarios.compare(small(), policies)
    assert message in str(caught.value)
    assert caught.value.file == "--policies"


def test_several_settings_of_one_policy_are_the_runs_with_these_settings() -> None:
    found = scenarios.compare(small(), ["chunked_prefill", "static", "chunked_prefill:max_num_batched_tokens=64"])
    small_steps, plain = "chunked_prefill max_num_batched_tokens=64", "chunked_prefill max_num_batched_tokens=256"
    assert list(found.summaries) == [small_steps, plain, "static"]
    alone = scenarios.run(small(engine__max_num_batched_tokens=64)).summary
    assert found.summaries[small_steps] == [alone]
    assert found.summaries[plain] == [scenarios.run(small()).summary]
    assert alone != found.summaries[plain][0]


def test_settings_of_a_users_policy(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, GREEDY)
    found = scenarios.compare(small(), [policy, f"{policy}:patience=3.5", "static"])
    assert list(found.summaries) == ["Mine patience=1.5", "Mine patience=3.5", "static"]
    assert found.first["Mine patience=3.5"].scenario.engine.parameter("patience") == 3.5


def test_an_override_that_one_policy_has_is_applied_there_and_said(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, GREEDY)
    found = scenarios.compare(small(), ["static", policy], overrides=["engine.patience=9", "workload.requests=20"])
    assert found.first["Mine"].scenario.engine.parameter("patience") == 9
    assert "--set engine.patience is applied to Mine alone: static does not take patience" in found.notes
    assert found.summaries["static"][0]["completed"] == 20


def test_an_override_that_all_have_goes_without_a_word() -> None:
    found = scenarios.compare(small(), ["static", "continuous"], overrides=["engine.max_num_seqs=2"])
    assert found.notes == ()
    assert found.summaries["static"] == [scenarios.run(small(engine__policy="static", engine__max_num_seqs=2)).summary]


def test_a_setting_of_a_variant_goes_before_the_override() -> None:
    found = scenarios.compare(
        small(), ["static", "static:max_num_seqs=3"], overrides=["engine.max_num_seqs=2", "engine.stream=false"]
    )
    assert list(found.summaries) == ["max_num_seqs=2", "max_num_seqs=3"]
    assert [each.scenario.engine.parameter("stream") for each in found.first.values()] == [False, False]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("engine.max_num_seq=3", "--set engine.max_num_seq=3: none of the compared policies takes"),
        ("engine.max_num_seq=3", "mean `max_num_seqs`"),
        ("engine.batch_timeout_s=3", "none of the compared policies takes engine.batch_timeout_s"),
        ("engine.max_num_seqs=x", "--set engine.max_num_seqs=x: engine.max_num_seqs: must be a whole number"),
        ("engine.class_weights.chat=2", "--set engine.class_weights.chat=2: none of"),
    ],
)
def test_bad_overrides(override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenarios.compare(small(), ["chunked_prefill", "continuous"], overrides=[override])
    assert message in str(caught.value)
