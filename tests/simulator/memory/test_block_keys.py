"""Keys of blocks: equal where, and only where, the tokens up to and including the block are the same."""

from collections.abc import Hashable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.request import PromptContent, Request

Keys = list[Hashable]
NAMES = Chains()  # of all requests here


def request(row: int, input_tokens: int, content: PromptContent | None = None, output_tokens: int = 1) -> Request:
    return Request(row, f"r{row}", 0.0, input_tokens, output_tokens, output_tokens, content=content)


def keys(row: int, input_tokens: int, size: int, content: PromptContent | None, chains: Chains | None = None) -> Keys:
    """The keys of a request's full blocks, two blocks beyond its prompt included."""
    made = BlockKeys(request(row, input_tokens, content), size, NAMES if chains is None else chains)
    return [made[block] for block in range(input_tokens // size + 2)]


def shared_blocks(ours: Keys, theirs: Keys) -> list[int]:
    """Places at which two requests have the same key; no key may stand at two different places."""
    for (i, a), (j, b) in product(enumerate(ours), enumerate(theirs)):
        assert i == j or a != b
    return [place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a == b]


def test_without_content_everything_is_a_requests_own() -> None:
    assert shared_blocks(keys(0, 40, 4, None), keys(1, 40, 4, None)) == []
    assert keys(0, 40, 4, None) == keys(0, 40, 4, None)
    assert len(set(keys(0, 40, 4, None))) == 12


def group(name: str, tokens: int) -> PromptContent:
    return PromptContent(prefix_group=name, prefix_tokens=tokens)


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (group("a", 12), group("a", 12), [0, 1, 2]),
        (group("a", 15), group("a", 13), [0, 1, 2]),  # a block must lie in the prefix wholly
        (group("a", 16), group("a", 9), [0, 1]),
        (group("a", 3), group("a", 3), []),
        (group("a", 12), group("b", 12), []),
        (group("a", 99), group("a", 99), [0, 1, 2, 3, 4]),  # never more than the prompt: 20 tokens
        (group("a", 0), group("a", 0), []),
    ],
)
def test_prefix_groups(ours: PromptContent, theirs: PromptContent, same: list[int]) -> None:
    assert shared_blocks(keys(0, 20, 4, ours), keys(1, 20, 4, theirs)) == same
    assert shared_blocks(keys(0, 20, 4, ours), keys(1, 23, 4, theirs)) == same


def hashes(size: int, *values: int) -> PromptContent:
    return PromptContent(block_hashes=values, hash_block_size=size)


def test_block_hashes_of_the_same_size() -> None:
    ours, theirs = keys(0, 16, 4, hashes(4, 7, 8, 9, 10)), keys(1, 18, 4, hashes(4, 7, 8, 90, 91, 92))
    assert shared_blocks(ours, theirs) == [0, 1]


def test_a_hash_names_several_of_the_caches_blocks() -> None:
    """Hashes of 8 tokens, blocks of 2: the second hash differs, so blocks 4 to 7 do."""
    ours, theirs = keys(0, 24, 2, hashes(8, 7, 8, 9)), keys(1, 24, 2, hashes(8, 7, 80, 9))
    assert shared_blocks(ours, theirs) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_block_of_the_cache_spans_several_hashes() -> None:
    """Hashes of 2 tokens, blocks of 4: the last hash within a block speaks for all before it."""
    ours, theirs = keys(0, 12, 4, hashes(2, 1, 2, 3, 4, 5, 6)), keys(1, 12, 4, hashes(2, 1, 2, 3, 40, 50, 60))
    assert shared_blocks(ours, theirs) == [0]


def test_the_partial_last_hash_covers_only_full_blocks_of_the_prompt() -> None:
    """13 tokens in hashes of 8, the last of 5 tokens: of blocks of 4 tokens, 3 are full."""
    ours, theirs = keys(0, 13, 4, hashes(8, 1, 2)), keys(1, 13, 4, hashes(8, 1, 2))
    assert shared_blocks(ours, theirs) == [0, 1, 2]


def test_fewer_hashes_than_blocks() -> None:
    """What is not named is the request's own."""
    assert shared_blocks(keys(0, 32, 4, hashes(8, 1, 2)), keys(1, 32, 4, hashes(8, 1, 2))) == [0, 1, 2, 3]


def test_the_same_hash_of_another_place_is_another_key() -> None:
    assert shared_blocks(keys(0, 8, 4, hashes(4, 5, 5)), keys(1, 8, 4, hashes(4, 5, 6))) == [0]


@pytest.mark.parametrize(("hashed", "size"), [(512, 48), (48, 512), (8, 12)])
def test_sizes_that_do_not_go_together(hashed: int, size: int) -> None:
    with pytest.raises(InputError, match="one must be a multiple of the other") as caught:
        BlockKeys(request(3, 1024, hashes(hashed, 1, 2, 3)), size, Chains())
    assert f"r3 has hashes of {hashed}-token blocks" in str(caught.value)
    assert f"block_size = {size}" in str(caught.value)


def ids(prompt: list[int], answer: list[int] | None = None) -> PromptContent:
    return PromptContent(prompt_token_ids=tuple(prompt), output_token_ids=tuple(answer or ()))


def test_token_ids_are_chained() -> None:
    """The second block holds the same tokens, but not after the same first one."""
    chains = Chains()
    ours = keys(0, 6, 2, ids([1, 2, 3, 4, 5, 6]), chains)
    theirs = keys(1, 6, 2, ids([9, 2, 3, 4, 5, 6]), chains)
    again = keys(2, 6, 2, ids([1, 2, 3, 4, 9, 9]), chains)
    assert shared_blocks(ours, theirs) == []
    assert shared_blocks(ours, again) == [0, 1]


def test_an_answer_goes_on_where_the_prompt_ended() -> None:
    """The next turn of a conversation finds the answer of the last, as far as whole blocks go."""
    chains = Chains()
    turn = BlockKeys(request(0, 5, ids([1, 2, 3, 4, 5], [6, 7, 8]), 3), 2, chains)
    following = BlockKeys(request(1, 9, ids([1, 2, 3, 4, 5, 6, 7, 8, 9])), 2, chains)
    assert [turn[block] == following[block] for block in range(4)] == [True] * 4
    assert turn[4] != following[4], "the ninth token of the first turn is not known"


def test_sources_do_not_mix() -> None:
    """A group, a hash, a row and a chain of tokens may have the same numbers, and are not the same content."""
    chains = Chains()
    contents = [None, group("1", 4), hashes(4, 1), ids([1, 1, 1, 1])]
    made = [keys(1, 4, 4, content, chains)[0] for content in contents]
    assert len(set(made)) == len(made)


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@given(one=tokens, other=tokens, size=st.integers(1, 4))
def test_token_ids_share_exactly_their_common_prefix(one: list[int], other: list[int], size: int) -> None:
    chains = Chains()
    # Asked for in any order, and the first request once more at the end.
    first = BlockKeys(request(0, len(one), ids(one)), size, chains)
    second = BlockKeys(request(1, len(other), ids(other)), size, chains)
    blocks = min(len(one), len(other)) // size
    theirs = [second[block] for block in reversed(range(blocks))][::-1]
    ours = [first[block] for block in range(blocks)]
    common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert shared_blocks(ours, theirs) == list(range(common // size))


@st.composite
def texts(draw: st.DrawFn) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompts and answers that go on with one another's beginnings."""
    bases = [draw(st.lists(st.integers(0, 1), min_size=20, max_size=20)) for _ in range(2)]
    made = []
    for _ in range(draw(st.integers(2, 8))):
        begun = draw(st.sampled_from(bases))[: draw(st.integers(0, 20))]
        said = (*begun, *draw(st.lists(st.integers(0, 1), min_size=1, max_size=10)))
        cut = draw(st.integers(1, len(said)))
        made.append((said[:cut], said[cut:]))
    return made


@given(made=texts(), size=st.integers(1, 3), lookahead=st.integers(0, 1))
def test_texts_are_cut_exactly_where_they_differ(
    made: list[tuple[tuple[int, ...], tuple[int, ...]]], size: int, lookahead: int
) -> None:
    chains = Chains()
    names: dict[tuple[int, ...], int] = {}
    for parts in made:
        said = (*parts[0], *parts[1])
        found = chains.follow(0, parts, max(0, len(said) - lookahead) // size, size, lookahead)
        keys = [text + place for text, start, stop in found for place in range(start, stop)]
        for place, key in enumerate(keys):
            assert names.setdefault(said[: (place + 1) * size + lookahead], key) == key
    assert len(set(names.values())) == len(names)
