"""The radix tree by hand: what is found, locked, split, merged and forgotten."""

import random
from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.memory.blocks import OutOfBlocksError, SwappableBlocks
from simulator.memory.radix_cache import RadixCache, common
from simulator.policies.sglang import Sglang
from simulator.request import PromptContent, Request
from simulator.timing.formula_cost import Linear
from tests.laws.caching import with_contents
from tests.laws.scenarios import Memory, Scenario, make_workload
from tests.laws.test_mooncake import first_requests, ideal_hits


def spelt(row: int, prompt: str, answer: str = "z") -> Request:
    """A request whose tokens are letters."""
    content = PromptContent(prompt_token_ids=tuple(map(ord, prompt)), output_token_ids=tuple(map(ord, answer)))
    return Request(row, f"r{row}", 0.0, len(prompt), len(answer), len(answer), content=content)


def admit(cache: RadixCache, asking: Request) -> int:
    """Its whole prompt in a step of its own; returns the pages that were found."""
    hits, _ = cache.hits(asking, asking.input_tokens)
    cache.match(asking, asking.input_tokens - 1)
    cache.take_hits(asking, hits)
    cache.allocate(asking.row, -(-asking.input_tokens // cache.block_size) - hits)
    cache.enter(asking, asking.input_tokens // cache.block_size)
    cache.settle([asking.row])
    cache.check()
    return hits


def end(cache: RadixCache, asking: Request) -> None:
    """It has decoded the rest of its answer."""
    tokens = asking.input_tokens + asking.output_tokens - 1
    held = -(-asking.input_tokens // cache.block_size)
    cache.grow(-(-tokens // cache.block_size) - held, (asking.row,))
    cache.enter(asking, tokens // cache.block_size)
    cache.free(asking.row, -(-tokens // cache.block_size))
    cache.end(asking.row)
    cache.check()


def tree(cache: RadixCache) -> dict[str, Any]:
    """The tree over pages of a letter, as nested dictionaries; a node in use is in capitals."""
    letters = {number: chr(symbol[1][0]) for symbol, number in cache._symbols.items()}  # type: ignore[index] # token ids

    def told(node: Any) -> dict[str, Any]:
        found = {}
        for child in node.children.values():
            name = "".join(letters[page >> 32] for page in child.pages)
            found[name.upper() if child.locks else name] = told(child)
        return found

    return told(cache.tree.root)


def test_a_prompt_is_a_node_and_a_fork_splits_it() -> None:
    cache = RadixCache(100, 0, 1)
    admit(cache, spelt(0, "abcdef"))
    assert tree(cache) == {"ABCDEF": {}}
    admit(cache, spelt(1, "abcxyz"))
    assert tree(cache) == {"ABC": {"DEF": {}, "XYZ": {}}}
    admit(cache, spelt(2, "abq"))
    assert tree(cache) == {"AB": {"C": {"DEF": {}, "XYZ": {}}, "Q": {}}}
    assert cache.num_free == 100 - 3 - 3 - 3 - 1


def test_what_is_in_use_and_what_is_not() -> None:
    cache = RadixCache(100, 0, 1)
    first, second = spelt(0, "abcdef"), spelt(1, "abcxyz")
    admit(cache, first)
    admit(cache, second)
    end(cache, first)
    assert tree(cache) == {"ABC": {"def": {}, "XYZ": {}}}
    assert cache.num_free == 94
    assert cache.hits(spelt(2, "abcdefg"), 7) == (6, 3), "of six that are found, nobody uses three"


def test_an_answer_enters_when_the_request_ends() -> None:
    """All but its last token, which is never computed."""
    cache = RadixCache(100, 0, 1)
    asking = spelt(0, "abc", "uvw")
    admit(cache, asking)
    cache.grow(2, (0,))
    assert cache.hits(spelt(1, "abcuvwx"), 7) == (3, 0)
    cache.enter(asking, 5)
    cache.free(0, 5)
    assert tree(cache) == {"abc": {"uv": {}}}
    assert cache.hits(spelt(1, "abcuvwx"), 7) == (5, 5)
    assert cache.num_free == 100


def test_who_is_retracted_loses_what_is_not_in_the_tree() -> None:
    cache = RadixCache(10, 0, 1)
    asking = spelt(0, "abc", "uvw")
    admit(cache, asking)
    cache.grow(2, (0,))
    cache.lose(0, 5)
    cache.check()
    assert tree(cache) == {"abc": {}}
    assert cache.num_free == 10
    assert cache.hits(asking, 5) == (3, 3)


def test_two_that_compute_the_same_keep_one_of_it() -> None:
    cache = RadixCache(10, 0, 1)
    one, other = spelt(0, "abcd"), spelt(1, "abcd")
    for asking in (one, other):
        cache.take_hits(asking, 0)
        cache.allocate(asking.row, 4)
        cache.enter(asking, 4)
    assert cache.num_free == 2
    cache.settle([0, 1])
    assert (tree(cache), cache.num_free) == ({"ABCD": {}}, 6)
    assert cache.freed_with({0: 4}) == 0
    assert cache.freed_with({0: 4, 1: 4}) == 4


@pytest.mark.parametrize(("tokens", "pages"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (40, 4)])
def test_one_token_at_least_is_left_to_compute(tokens: int, pages: int) -> None:
    cache = RadixCache(100, 0, 4)
    admit(cache, spelt(0, "abcdefghijklmnop"))
    assert cache.hits(spelt(1, "abcdefghijklmnop" * 3), tokens) == (pages, 0)


def test_pages_of_several_tokens_are_shared_whole() -> None:
    """Three of the first four letters are the same: no page is."""
    cache = RadixCache(100, 0, 4)
    admit(cache, spelt(0, "abcdefgh"))
    assert cache.hits(spelt(1, "abcxefgh"), 8) == (0, 0)
    assert cache.hits(spelt(2, "abcdexxx"), 8) == (1, 0)


def test_chunks_enter_one_by_one() -> None:
    cache = RadixCache(100, 0, 4)
    asking = spelt(0, "abcdefghijklmnop")
    cache.take_hits(asking, 0)
    for tokens, found in ((6, 1), (11, 2), (16, 4)):
        cache.allocate(0, -(-tokens // 4) - cache._holders[0].shared - cache._own)
        cache.enter(asking, tokens // 4)
        cache.settle([0])
        cache.check()
        assert cache.hits(spelt(1, "abcdefghijklmnopq"), 17) == (found, 0)


def test_the_leaf_used_least_recently_is_forgotten_first() -> None:
    """As a whole, then the next; and what lies below it before it."""
    cache = RadixCache(12, 0, 1)
    for row, prompt in enumerate(["abcd", "efgh", "abxy"]):
        asking = spelt(row, prompt)
        admit(cache, asking)
        end(cache, asking)
    assert tree(cache) == {"ab": {"cd": {}, "xy": {}}, "efgh": {}}
    forgotten = []
    for taker in range(10, 16):
        cache.take_hits(spelt(taker, "q"), 0)
        cache.allocate(taker, 2)
        cache.check()
        forgotten.append(list(tree(cache)))
    # Two were idle. What was met with "abxy" is newer than "efgh"; "cd", which was met too, is older than "xy".
    assert forgotten == [["ab", "efgh"], ["ab"], ["ab"], ["ab"], ["ab"], []]


def test_of_two_met_together_the_older_goes_first() -> None:
    """The tail behind a split was used as recently as the head and as what branches off; it is the older leaf."""
    cache = RadixCache(6, 0, 1)
    for row, prompt in enumerate(["abcd", "abxy"]):
        asking = spelt(row, prompt)
        admit(cache, asking)
        end(cache, asking)
    cache.take_hits(spelt(2, "q"), 0)
    cache.allocate(2, 1)
    assert tree(cache) == {"ab": {"xy": {}}}


def test_what_is_in_use_is_not_forgotten() -> None:
    cache = RadixCache(6, 0, 1)
    admit(cache, spelt(0, "abcd"))
    cache.take_hits(spelt(1, "xyz"), 0)
    with pytest.raises(OutOfBlocksError, match="3 blocks are asked for, 2 are free"):
        cache.allocate(1, 3)
    cache.allocate(1, 2)
    assert tree(cache) == {"ABCD": {}}


def test_counts_that_cannot_be_are_refused() -> None:
    cache = RadixCache(10, 0, 4)
    asking = spelt(0, "abcdefgh")
    admit(cache, asking)
    with pytest.raises(ValueError, match="row 0 shares 2 blocks, and cannot hold 4"):
        cache.free(0, 4)
    with pytest.raises(ValueError, match="row 0 shares 2 blocks, and cannot hold 1"):
        cache.lose(0, 1)


def test_there_is_no_swapping() -> None:
    assert not isinstance(RadixCache(4, 4, 1), SwappableBlocks)


def test_stale_entries_do_not_pile_up() -> None:
    cache = RadixCache(100, 0, 1)
    for row in range(5000):
        asking = spelt(row, "abcd")
        admit(cache, asking)
        end(cache, asking)
    assert len(cache.tree._candidates) < 1100


@given(node=st.lists(st.integers(0, 2), min_size=1, max_size=20), pages=st.lists(st.integers(0, 2), max_size=20))
def test_common_counts_pages(node: list[int], pages: list[int]) -> None:
    pages = [node[0], *pages]
    most = min(len(node), len(pages))
    known = next((i for i in range(most) if node[i] != pages[i]), most)
    assert common(array("q", node), array("q", [9, 9, *pages]), 2) == known


def a_leaf(cache: RadixCache) -> Any:
    return next(iter(cache.tree.root.children.values()))


DAMAGE: dict[str, Callable[[RadixCache], Any]] = {
    "a lock too many": lambda cache: setattr(a_leaf(cache), "locks", 2),
    "a page lost": lambda cache: setattr(cache, "_idle", cache._idle - 1),
    "a page too many": lambda cache: setattr(cache, "_own", cache._own + 1),
    "an unlocked page not counted": lambda cache: setattr(cache.tree, "unlocked", cache.tree.unlocked - 1),
    "a node forgotten": lambda cache: cache.tree.root.children.popitem(),
    "a node cut off": lambda cache: setattr(a_leaf(cache), "parent", None),
    "pages lost from a node": lambda cache: a_leaf(cache).pages.pop(),
    "a node under another name": lambda cache: cache.tree.root.children.__setitem__(
        7, cache.tree.root.children.popitem()[1]
    ),
    "a leaf that is never forgotten": lambda cache: cache.tree._candidates.clear(),
    "a request that shares more": lambda cache: setattr(cache._holders[0], "shared", 9),
    "a node of the future": lambda cache: setattr(a_leaf(cache), "used_at", 10**6),
    "nodes miscounted": lambda cache: setattr(cache.tree, "_nodes", 5),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_finds_damage(damage: str) -> None:
    cache = RadixCache(16, 0, 1)
    admit(cache, spelt(0, "abcd"))
    gone = spelt(1, "xyz")
    admit(cache, gone)
    end(cache, gone)
    DAMAGE[damage](cache)
    with pytest.raises(AssertionError):
        cache.check()


# ---------------------------------------------------------------------------------------------- beside what is known


@pytest.mark.parametrize(("kept", "slack"), [(1, 3), (3, 2), (5, 6), (12, 3)])
def test_hits_are_those_of_a_list_of_recently_used_prefixes(kept: int, slack: int) -> None:
    """Prompts of 8 pages that share all or nothing, one at a time: a least-recently-used list of whole prompts."""
    rng = random.Random(kept)
    names = [min(int(rng.expovariate(0.15)), 19) for _ in range(800)]
    workload = make_workload([float(row) for row in range(len(names))], [(8, 1)] * len(names))
    scenario = Scenario(workload, Sglang(1, 64), Memory(8 * kept + slack + 1, 1), Linear(0.001))
    contents = [PromptContent(prefix_group=str(name), prefix_tokens=8) for name in names]
    run = with_contents(scenario, contents).run(make_blocks=partial(RadixCache, block_size=1))
    lru: OrderedDict[int, None] = OrderedDict()
    expected = []
    for name in names:
        expected.append(7 if name in lru else 0)  # one token is left to compute
        lru[name] = None
        lru.move_to_end(name)
        if len(lru) > kept:
            lru.popitem(last=False)
    assert run.records.requests.cached_tokens.tolist() == expected
    assert 0 < sum(expected) < 7 * len(names)


@pytest.mark.shared
def test_a_tree_that_forgets_nothing_finds_all_there_is_in_a_real_trace() -> None:
    """A conversation trace with hashes of 512 tokens, one request at a time, over pages of 64."""
    workload = first_requests(1500)
    scenario = Scenario(workload, Sglang(1, 8192), Memory(2_000_000, 64), Linear(0.005, 2e-5))
    records = scenario.run(make_blocks=partial(RadixCache, block_size=64)).records
    assert records.requests.cached_tokens.tolist() == ideal_hits(workload, 64)


@pytest.mark.shared
def test_less_memory_finds_less_in_a_real_trace() -> None:
    workload = first_requests(400)
    found = []
    for pages in (8_000, 20_000, 60_000):
        scenario = Scenario(workload, Sglang(1, 8192), Memory(pages, 16), Linear(0.005, 2e-5))
        records = scenario.run(make_blocks=partial(RadixCache, block_size=16)).records
        found.append(int(records.requests.cached_tokens.sum()))
    assert 0 < found[0] < found[1] < found[2] < sum(ideal_hits(workload, 16))
