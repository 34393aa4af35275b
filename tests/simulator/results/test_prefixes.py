"""The tree of shared prefixes: by hand for each kind of content, and against what a cache without limits finds."""

from dataclasses import replace
from typing import Any

import pytest

import scenarios
from simulator.request import PromptContent
from simulator.results import shared_prefixes as prefixes
from simulator.results.records import Records
from simulator.results.shared_prefixes import PrefixColumns, shared_prefixes
from simulator.workload import Workload
from tests.columns import as_floats, as_ints
from tests.reports_maker import continuous


def hits() -> Records:
    """A run whose cache found something: of it the tree asks no more."""
    records = continuous(4)
    return replace(records, requests=replace(records.requests, cached_tokens=as_ints([1] * 4)))


def tree(
    content: list[PromptContent | None], input_tokens: list[int], output_tokens: int = 10
) -> list[tuple[int, ...]]:
    some = as_ints([output_tokens] * len(content))
    workload = Workload(
        as_floats(range(len(content))), as_ints(input_tokens), some, some, 0 * some, 0 * some, content=content
    )
    found = shared_prefixes(workload, hits())
    assert found is not None
    columns = (found.parent, found.from_tokens, found.to_tokens, found.requests)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def hashed(*names: int) -> PromptContent:
    return PromptContent(block_hashes=names, hash_block_size=512)


def test_stretches_end_where_requests_part() -> None:
    """Two of four go on for two blocks together, behind one that three have; the last block is not whole."""
    found = tree([hashed(1, 2, 3), hashed(1, 2, 3), hashed(1, 9), hashed(7), None], [1500, 1500, 900, 100, 50])
    assert found == [(-1, 0, 0, 5), (0, 0, 512, 3), (1, 512, 1500, 2)]


def test_groups_and_conversations() -> None:
    group = PromptContent(prefix_group="a", prefix_tokens=100)
    turn = PromptContent(conversation="x")
    assert tree([group, group, PromptContent(prefix_group="b", prefix_tokens=50)], [300, 200, 300]) == [
        (-1, 0, 0, 3), (0, 0, 100, 2)
    ]  # fmt: skip
    # The second turn begins with the first's prompt and answer, 110 tokens, and the third with the second's, 210.
    assert tree([turn, turn, turn], [100, 200, 300]) == [(-1, 0, 0, 3), (0, 0, 110, 3), (1, 110, 210, 2)]


def test_token_ids_are_compared_a_stretch_at_once() -> None:
    whole = tuple(range(200))
    first, other = PromptContent(prompt_token_ids=whole), PromptContent(prompt_token_ids=(*whole[:150], 7, 7))
    assert tree([first, other], [200, 152]) == [(-1, 0, 0, 2), (0, 0, 128, 2)]


def test_of_many_the_most_shared_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "MOST_NODES", 2)
    monkeypatch.setattr(prefixes, "MOST_REQUESTS", 5)
    found = tree([hashed(1, 2), hashed(1, 2), hashed(1), hashed(3), hashed(3), hashed(3)], [1024, 1024, 512, 9, 9, 9])
    assert found == [(-1, 0, 0, 5), (0, 0, 512, 3)]


def test_nothing_is_shared_where_nothing_was_found() -> None:
    assert shared_prefixes(None, hits()) is None
    assert scenarios.run(alone(enable_prefix_caching=False)).shown().workload is not None
    result = scenarios.run(alone(enable_prefix_caching=False))
    assert shared_prefixes(result.workload, result.records) is None


def alone(**engine: Any) -> dict[str, Any]:
    """Requests one after the other, with whole blocks of a common beginning."""
    fixed = {"dist": "fixed", "value": 400}
    chat = {"name": "chat", "arrival": {"process": "constant", "rate": 0.2}, "input": fixed,
            "output": {"dist": "fixed", "value": 8}, "prefix": {"groups": 3, "tokens": 208}}  # fmt: skip
    engine = {"policy": "chunked_prefill", "enable_prefix_caching": True, **engine}
    return {
        "name": "alone",
        "hardware": {"gpu": "h200"},
        "workload": {"requests": 30, "classes": [chat]},
        "engine": engine,
    }


def test_a_cache_without_limits_finds_all_that_is_repeated() -> None:
    result = scenarios.run(alone())
    found = shared_prefixes(result.workload, result.records)
    assert isinstance(found, PrefixColumns)
    assert found.repeated_tokens == int(result.records.requests.cached_tokens.sum()) > 0
