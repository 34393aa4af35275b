"""Names of run folders: short, safe, the same for the same command line and different for different ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.runs.storage.output import LONGEST, default_folder, policy_name

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=200)


@pytest.mark.parametrize(
    ("parts", "changed", "name"),
    [
        (["quickstart", "static"], [], "quickstart-static"),
        (["my chat", "Mine"], [], "my-chat-Mine"),
        (["q", "static"], ["engine.max_num_seqs=8", "seed=3"], "q-static-max_num_seqs=8-seed=3"),
        (["q", "static"], ["seed=3", "engine.max_num_seqs = 8"], "q-static-max_num_seqs=8-seed=3"),
        (["q", "static"], ["engine.policy=static", "name=q", "replicas=2"], "q-static-replicas=2"),
        (["q", "static"], ["replicas=1", "replicas=2"], "q-static-replicas=2"),
        (["q", "static"], ["cost.kind=profile", "slo.ttft_ms=5"], "q-static-cost.kind=profile-slo.ttft_ms=5"),
        (["q", "static"], ["workload.classes.0.arrival.rate=9"], "q-static-classes.0.arrival.rate=9"),
        (["q", "compare", "static+continuous", "", "seeds=5"], [], "q-compare-static+continuous-seeds=5"),
    ],
)
def test_names(parts: list[str], changed: list[str], name: str) -> None:
    assert default_folder(*parts, changed=changed) == Path("runs", name)


def test_policies_are_named_by_file_and_class() -> None:
    assert policy_name("chunked_prefill") == "chunked_prefill"
    assert [policy_name(f"/some/{file}.py:Mine") for file in "ab"] == ["a.Mine", "b.Mine"]


def test_values_that_are_no_file_names_are_told_apart_by_a_hash() -> None:
    one, other = (default_folder("q", changed=[f"slo={{ttft_ms: {value}}}"]) for value in ("5", "[5]"))
    assert one.name.startswith("q-slo=ttft_ms-5-")
    assert one != other


def test_long_names_are_shortened_with_a_hash() -> None:
    one, other = (default_folder("q", changed=[f"workload.trace.path={'x' * 300}{end}"]) for end in "ab")
    assert len(one.name) == len(other.name) <= LONGEST
    assert one != other


@given(st.lists(TEXT, min_size=1, max_size=4), st.dictionaries(TEXT.filter(lambda key: "=" not in key), TEXT))
def test_names_are_safe(parts: list[str], values: dict[str, str]) -> None:
    folder = default_folder("q", *parts, changed=[f"{key}={value}" for key, value in values.items()])
    assert folder.parent == Path("runs")
    assert len(folder.name.encode()) <= 4 * LONGEST
    assert len(folder.name) <= LONGEST
    assert not {"/", "\\", ":", " ", "\0"} & {*folder.name}
    assert folder == default_folder("q", *parts, changed=[f"{key}={value}" for key, value in reversed(values.items())])


@given(
    st.lists(st.tuples(st.sampled_from(["engine.a", "hardware.b", "slo.c", "seed"]), TEXT.map(str.strip)), max_size=3)
)
def test_other_values_have_other_names(changes: list[tuple[str, str]]) -> None:
    changed = [f"{key}={value}" for key, value in changes]
    other = [*changed, "engine.d=1"]
    assert default_folder("q", changed=changed) != default_folder("q", changed=other)
