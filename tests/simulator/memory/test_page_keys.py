"""Numbers of pages: equal where keys of blocks are."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.memory.radix_cache import PageKeys, Symbols
from simulator.request import PromptContent, Request
from tests.laws.caching import groups, hashes, mixed, token_ids
from tests.laws.scenarios import make_workload


def request(row: int, input_tokens: int, content: PromptContent | None = None) -> Request:
    return Request(row, f"r{row}", 0.0, input_tokens, 8, 8, content=content)


def test_the_numbers_of_more_pages_begin_with_those_of_fewer() -> None:
    keys = PageKeys(request(0, 20, PromptContent(prefix_group="a", prefix_tokens=10)), 4, {})
    few, more = keys.first(3), keys.first(9)
    assert more[:3] == few
    assert keys.first(3) == few
    assert len(set(more)) == 9
    assert [number > 0 for number in more] == [True, True] + [False] * 7, "the rest is its own"


def test_what_is_its_own_is_nobody_elses() -> None:
    one, other = (PageKeys(request(row, 5), 1, {}).first(1000) for row in (0, 1))
    assert not set(one) & set(other)


def test_hashes_that_do_not_go_with_the_page_size_are_refused() -> None:
    with pytest.raises(InputError, match="r0 has hashes of 6-token blocks"):
        PageKeys(request(0, 20, PromptContent(block_hashes=(1, 2), hash_block_size=6)), 4, {})


@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 4, 16]),
    make=st.sampled_from([groups, hashes, token_ids, mixed]),
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=8),
)
def test_they_are_equal_where_keys_are(seed: int, size: int, make: object, lengths: list[int]) -> None:
    """As far as all before is equal too, which is all that a tree asks."""
    workload = make_workload([0.0] * len(lengths), [(length, 6) for length in lengths])
    contents = make(random.Random(seed), workload, size)  # type: ignore[operator] # one of four functions
    asking = [request(row, lengths[row], content) for row, content in enumerate(contents)]
    chains = Chains()
    symbols: Symbols = {}
    keys = [BlockKeys(one, size, chains) for one in asking]
    pages = [PageKeys(one, size, symbols) for one in asking]
    for row, ours in enumerate(keys):
        for other, theirs in enumerate(keys):
            count = min(lengths[row], lengths[other]) // size + 2
            told = common([ours[place] for place in range(count)], [theirs[place] for place in range(count)])
            assert common(pages[row].first(count), pages[other].first(count)) == told


def common(one: object, other: object) -> int:
    pairs = list(zip(one, other, strict=True))  # type: ignore[call-overload] # sequences of any kind
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs))
