"""The prefix cache: who hits what, what is forgotten first, and that no block is lost or counted twice."""

from collections.abc import Callable
from typing import Any

import pytest

from simulator.memory.blocks import OutOfBlocksError, SwappableBlocks
from simulator.memory.prefix_cache import PrefixCache
from simulator.request import PromptContent, Request

SIZE = 4


def request(row: int, input_tokens: int, content: PromptContent | None = None, output_tokens: int = 8) -> Request:
    return Request(row, f"r{row}", 0.0, input_tokens, output_tokens, output_tokens, content=content)


def group(row: int, input_tokens: int, name: str = "a", tokens: int | None = None) -> Request:
    """A request whose leading `tokens`, all of its prompt unless told, are those of a prefix group."""
    shared = input_tokens if tokens is None else tokens
    return request(row, input_tokens, PromptContent(prefix_group=name, prefix_tokens=shared))


def spelt(row: int, prompt: str) -> Request:
    """A request whose tokens are letters."""
    return request(row, len(prompt), PromptContent(prompt_token_ids=tuple(map(ord, prompt))))


def admit(cache: PrefixCache, asking: Request) -> list[int]:
    """As the engine admits a whole prompt in a step: hits, new blocks, full ones entered. Returns its blocks."""
    hits, _ = cache.hits(asking, asking.input_tokens)
    cache.take_hits(asking, hits)
    cache.allocate(asking.row, -(-asking.input_tokens // SIZE) - hits)
    cache.enter(asking, asking.input_tokens // SIZE)
    cache.check()
    return list(cache.tables[asking.row])


def leave(cache: PrefixCache, row: int) -> None:
    cache.free(row, len(cache.tables.get(row, ())))
    cache.end(row)
    cache.check()


def free_ids(cache: PrefixCache) -> list[int]:
    """The free queue, from the front."""
    return list(cache._free)


def test_the_null_block_is_never_used() -> None:
    cache = PrefixCache(3, 0, SIZE)
    assert cache.num_free == cache.num_blocks == 3
    cache.allocate(0, 3)
    assert cache.tables[0] == [1, 2, 3]
    assert cache.num_free == 0


def test_a_hit_shares_blocks_that_are_in_use() -> None:
    cache = PrefixCache(8, 0, SIZE)
    assert admit(cache, group(0, 10)) == [1, 2, 3]
    assert cache.hits(group(1, 10), 10) == (2, 0)
    assert admit(cache, group(1, 10)) == [1, 2, 4]
    assert cache.num_free == 4
    leave(cache, 0)
    assert cache.num_free == 5, "the shared ones are still in use"
    assert free_ids(cache) == [3, 5, 6, 7, 8], "what the cache does not know is taken first"
    leave(cache, 1)
    assert cache.num_free == 8


def test_a_hit_on_what_nobody_uses_leaves_the_queue() -> None:
    cache = PrefixCache(8, 0, SIZE)
    admit(cache, group(0, 10))
    leave(cache, 0)
    assert cache.num_free == 8
    assert cache.hits(group(1, 10), 10) == (2, 2), "both count as free, and taking them uses up free blocks"
    assert admit(cache, group(1, 10)) == [1, 2, 3]
    assert cache.num_free == 5


@pytest.mark.parametrize(("input_tokens", "blocks"), [(8, 1), (9, 2), (11, 2), (12, 2), (13, 3), (4, 0), (1, 0)])
def test_one_token_at_least_is_left_to_compute(input_tokens: int, blocks: int) -> None:
    """A prompt that is cached whole still computes its last block."""
    cache = PrefixCache(16, 0, SIZE)
    admit(cache, group(0, 32))
    assert cache.hits(group(1, input_tokens), input_tokens) == (blocks, 0)


def test_a_whole_prompt_in_the_cache_computes_its_last_block_again() -> None:
    """The block then enters beside the one that holds the same: duplicates are not merged, and the first serves."""
    cache = PrefixCache(8, 0, SIZE)
    assert admit(cache, group(0, 8)) == [1, 2]
    assert admit(cache, group(1, 8)) == [1, 3]
    assert admit(cache, group(2, 12)) == [1, 2, 4]
    leave(cache, 0)
    leave(cache, 2)
    assert free_ids(cache) == [5, 6, 7, 8, 4, 2]
    cache.allocate(9, 6)
    assert cache.hits(group(3, 12), 12) == (2, 0), "block 2 is gone, block 3 holds the same"
    cache.take_hits(group(3, 12), 2)
    assert cache.tables[3] == [1, 3]
    cache.check()


def test_the_first_of_the_duplicates_serves_though_it_is_free() -> None:
    cache = PrefixCache(8, 0, SIZE)
    admit(cache, group(0, 8))
    admit(cache, group(1, 8))
    leave(cache, 0)
    assert cache.hits(group(2, 12), 12) == (2, 1), "block 2, which nobody uses, and not block 3"
    assert admit(cache, group(2, 12)) == [1, 2, 4]


def test_a_gap_ends_the_hits() -> None:
    """The first block was taken for something else: those behind it are of no use, though they are still there."""
    cache = PrefixCache(3, 0, SIZE)
    assert admit(cache, spelt(0, "aaaabbbbcccc")) == [1, 2, 3]
    leave(cache, 0)
    assert free_ids(cache) == [3, 2, 1]
    cache._free.move_to_end(1, last=False)
    cache.allocate(5, 1)
    assert cache.hits(spelt(1, "aaaabbbbccccd"), 13) == (0, 0)


def test_the_tail_is_forgotten_before_the_head() -> None:
    cache = PrefixCache(6, 0, SIZE)
    assert admit(cache, group(0, 24)) == [1, 2, 3, 4, 5, 6]
    leave(cache, 0)
    assert free_ids(cache) == [6, 5, 4, 3, 2, 1]
    found = []
    for taker in range(1, 7):
        cache.allocate(taker, 1)
        found.append(cache.hits(group(9, 25), 25)[0])
    assert found == [5, 4, 3, 2, 1, 0]


def test_the_least_recently_used_is_forgotten_first() -> None:
    """Used once more, the oldest content is the youngest."""
    cache = PrefixCache(6, 0, SIZE)
    for row, name in enumerate("abc"):
        admit(cache, group(row, 8, name))
        leave(cache, row)
    assert free_ids(cache) == [2, 1, 4, 3, 6, 5]
    admit(cache, group(3, 5, "a"))
    assert cache.tables[3] == [1, 2], "the second block is new, and its old content the least recently used"
    leave(cache, 3)
    assert free_ids(cache) == [2, 4, 3, 6, 5, 1]
    cache.allocate(9, 3)
    assert [cache.hits(group(row, 9, name), 9)[0] for row, name in enumerate("abc", 20)] == [1, 0, 2]


def test_blocks_that_the_cache_does_not_know_go_first() -> None:
    """Seven blocks, of which three have entered: the other four come to the front, the last block foremost."""
    cache = PrefixCache(8, 0, SIZE)
    own = request(0, 12)
    cache.allocate(0, 7)
    cache.enter(own, 3)
    cache.check()
    leave(cache, 0)
    assert free_ids(cache) == [7, 6, 5, 4, 8, 3, 2, 1]


def test_growing_takes_a_block_a_row_in_order_and_evicts() -> None:
    cache = PrefixCache(4, 0, SIZE)
    admit(cache, group(0, 8))
    leave(cache, 0)
    cache.allocate(1, 1)
    cache.allocate(2, 1)
    assert (cache.tables, free_ids(cache)) == ({1: [3], 2: [4]}, [2, 1])
    cache.grow(2, iter([2, 1]))
    assert cache.tables == {1: [3, 1], 2: [4, 2]}
    assert cache.hits(group(5, 9), 9) == (0, 0)
    cache.check()


def test_a_request_finds_its_own_blocks_again() -> None:
    """Preempted and admitted again: prompt and output of which nothing is known are its own, and still there."""
    cache = PrefixCache(8, 0, SIZE)
    own = request(0, 6)
    admit(cache, own)
    cache.enter(own, 2)  # two more tokens were sampled
    cache.free(0, 2)
    cache.check()
    assert cache.hits(own, 8) == (1, 1)
    assert cache.hits(own, 9) == (2, 2)
    assert cache.hits(request(1, 9), 9) == (0, 0)
    cache.take_hits(own, 2)
    assert cache.tables[0] == [1, 2]
    cache.check()


def test_entering_is_told_once() -> None:
    """Blocks that were hit or have entered do not enter again."""
    cache = PrefixCache(8, 0, SIZE)
    first, second = group(0, 12), group(1, 12)
    admit(cache, first)
    admit(cache, second)
    before = {key: list(same) for key, same in cache._blocks.items()}
    cache.enter(second, 3)
    cache.enter(second, 1)
    assert {key: list(same) for key, same in cache._blocks.items()} == before
    assert sorted(map(len, before.values())) == [1, 1, 2]


def test_what_leaving_would_free() -> None:
    """Blocks that these requests alone use: those that all of the users of a block leave."""
    cache = PrefixCache(12, 0, SIZE)
    for row in range(3):
        admit(cache, group(row, 14, tokens=8))  # two shared blocks and two of its own
    assert cache.num_free == 4
    assert [cache.freed_with(rows) for rows in ([], [0], [0, 1], [2, 0, 1], [7])] == [0, 2, 4, 8, 0]
    for row in (2, 0, 1):
        leave(cache, row)
    assert cache.num_free == 12


def test_more_than_there_is_changes_nothing() -> None:
    cache = PrefixCache(4, 0, SIZE)
    admit(cache, group(0, 8))
    leave(cache, 0)
    cache.allocate(1, 1)
    before = free_ids(cache)
    with pytest.raises(OutOfBlocksError, match="row 1 asks for 4 blocks, 3 are free"):
        cache.allocate(1, 4)
    assert free_ids(cache) == before
    assert cache.hits(group(5, 9), 9) == (2, 2)


def test_a_request_may_hold_more_than_its_tokens_need_but_not_less() -> None:
    """A victim of this very step had been given blocks for tokens that it never computed."""
    cache = PrefixCache(4, 0, SIZE)
    cache.allocate(1, 2)
    with pytest.raises(ValueError, match="row 1 holds 2 blocks, not 3"):
        cache.free(1, 3)


def test_there_is_no_swapping() -> None:
    assert not isinstance(PrefixCache(4, 4, SIZE), SwappableBlocks)


DAMAGE: dict[str, Callable[[PrefixCache], Any]] = {
    "a reference too many": lambda cache: cache.references.__setitem__(1, 2),
    "a block lost": lambda cache: cache._free.popitem(),
    "a block both free and owned": lambda cache: cache._free.setdefault(1),
    "a block owned twice": lambda cache: cache.tables[1].append(1),
    "content at two places": lambda cache: cache._blocks.setdefault("x", {1: None}),
    "content forgotten": lambda cache: cache._blocks.clear(),
    "a key forgotten": lambda cache: cache._key.__setitem__(1, None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_finds_damage(damage: str) -> None:
    cache = PrefixCache(6, 0, SIZE)
    admit(cache, group(0, 8))
    admit(cache, group(1, 8, "b"))
    DAMAGE[damage](cache)
    with pytest.raises(AssertionError):
        cache.check()
