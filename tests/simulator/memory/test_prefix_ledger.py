"""Runs of blocks: how they are shared, split and evicted. What it decides, `test_prefix_cache_model` compares."""

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest

from simulator.memory.block_keys import RequestKeys
from simulator.memory.blocks import Cache, OutOfBlocksError, SwappableBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.request import PromptContent, Request
from tests.simulator.memory.test_prefix_cache import SIZE, group, request, spelt


def admit(ledger: PrefixLedger, asking: Request, num_tokens: int | None = None) -> int:
    """As the engine admits a whole prompt in a step; returns how many blocks it found."""
    tokens = asking.input_tokens if num_tokens is None else num_tokens
    hits, _ = ledger.hits(asking, tokens)
    ledger.take_hits(asking, hits)
    ledger.allocate(asking.row, -(-tokens // SIZE) - hits)
    ledger.enter(asking, tokens // SIZE)
    ledger.check()
    return hits


def queue(ledger: PrefixLedger) -> list[tuple[int, int, int]]:
    """Row, first place and number of blocks of the free runs, from the front."""
    return [(run.row, run.start, run.size) for run in ledger._free]


def test_it_is_a_cache_without_ids() -> None:
    ledger = PrefixLedger(8, 0, SIZE)
    assert isinstance(ledger, Cache)
    assert ledger.by_id is None
    assert not isinstance(ledger, SwappableBlocks)
    assert (ledger.num_free, ledger.num_blocks) == (8, 8)


def test_what_is_used_together_is_one_run() -> None:
    """Of 20 tokens, 8 are shared with a shorter prompt: the run is split when the longer one leaves, and not before."""
    ledger = PrefixLedger(16, 0, SIZE)
    admit(ledger, group(0, 20))
    assert [run.size for run in ledger._tables[0].runs] == [5]
    assert admit(ledger, group(1, 9)) == 2
    assert [(run.size, run.references, run.cut) for run in ledger._tables[0].runs] == [(5, 2, {2: 1})]
    assert ledger.freed_with({0: 5}) == 3
    assert ledger.freed_with({1: 3}) == 1, "what is its own"
    assert ledger.freed_with({0: 5, 1: 3}) == 6
    ledger.free(0, 5)
    ledger.check()
    assert queue(ledger) == [(0, 2, 3)]
    assert [(run.size, run.references, run.cut) for run in ledger._tables[1].parts()] == [(2, 1, None)]
    ledger.free(1, 3)
    assert ledger.num_free == 16
    assert queue(ledger) == [(0, 0, 5)], "they are one again; what holds nothing is not in it"


def test_of_cut_uses_the_longest_keeps_its_blocks() -> None:
    ledger = PrefixLedger(32, 0, SIZE)
    admit(ledger, group(0, 40))
    for row, tokens in ((1, 9), (2, 25), (3, 17), (4, 9)):
        admit(ledger, group(row, tokens))
    assert [(run.size, run.references, run.cut) for run in ledger._tables[0].runs] == [(10, 5, {2: 2, 6: 1, 4: 1})]
    ledger.free(0, 10)
    ledger.check()
    assert queue(ledger) == [(0, 6, 4)]
    ledger.free(3, 5)
    ledger.check()
    assert queue(ledger) == [(0, 6, 4)], "the longer one uses its blocks too"
    ledger.free(2, 7)
    ledger.check()
    assert queue(ledger) == [(0, 2, 8)]


def test_a_free_run_is_split_where_it_lies_in_the_queue() -> None:
    ledger = PrefixLedger(16, 0, SIZE)
    for row, name in enumerate("ab"):
        admit(ledger, group(row, 20, name))
        ledger.free(row, 5)
    assert admit(ledger, group(2, 9, "a")) == 2
    assert queue(ledger) == [(0, 2, 3), (1, 0, 5)], "its head is in use, its tail comes before the other run"
    ledger.allocate(9, 6 + 4)
    ledger.check()
    assert queue(ledger) == [(1, 0, 3)]
    assert ledger.hits(group(3, 30, "b"), 30) == (3, 3)
    assert ledger.hits(group(4, 30, "a"), 30) == (2, 0)


def test_of_a_use_that_stops_early_and_one_that_was_split_both_leave() -> None:
    """Two requests enter the same text behind half of another's run; as the first is forgotten, the second is split."""
    ledger = PrefixLedger(24, 0, SIZE)
    admit(ledger, spelt(0, "a" * 40))
    twins = [spelt(row, "a" * 20 + "b" * 20) for row in (1, 2)]
    for twin in twins:
        ledger.take_hits(twin, ledger.hits(twin, 40)[0])
        ledger.allocate(twin.row, 5)
    for twin in twins:
        ledger.enter(twin, 10)
    ledger.free(1, 10)
    ledger.allocate(9, 4 + 2)
    ledger.check()
    assert [(run.start, run.size) for run in ledger._tables[2].parts()] == [(0, 10), (5, 3), (8, 2)]
    ledger.free(2, 10)
    ledger.check()
    assert ledger.num_free == 24 - 10 - 6


def test_own_blocks_of_the_finished_are_one_nameless_run() -> None:
    ledger = PrefixLedger(16, 0, SIZE)
    for row in range(3):
        admit(ledger, request(row, 16))
    for row in range(3):
        ledger.free(row, 4)
        ledger.end(row)
    assert queue(ledger) == [(-1, 0, 12)]
    ledger.allocate(9, 10)
    assert queue(ledger) == [(-1, 0, 6)]
    assert ledger.num_free == 6


def test_a_preempted_request_finds_its_own_until_they_are_taken() -> None:
    ledger = PrefixLedger(8, 0, SIZE)
    own = request(0, 16)
    admit(ledger, own)
    ledger.lose(0, 4)
    assert ledger.hits(own, 17) == (4, 4)
    assert ledger.hits(request(1, 17), 17) == (0, 0)
    ledger.allocate(9, 5)
    assert ledger.hits(own, 17) == (3, 3), "the last block has gone"
    ledger.free(9, 5)
    assert admit(ledger, own, 14) == 3
    ledger.lose(0, 4)
    ledger.end(0)
    assert not ledger._own
    ledger.check()


def test_before_vllm_0_26_empty_blocks_wait_their_turn() -> None:
    ledger = PrefixLedger(6, 0, SIZE)
    ledger.unknown_first = False
    admit(ledger, group(0, 10))
    ledger.free(0, 3)
    assert queue(ledger) == [(-1, 0, 1), (0, 0, 2)]
    ledger.allocate(1, 4)
    assert ledger.hits(group(2, 9), 9) == (2, 2)
    ledger.allocate(1, 1)
    assert ledger.hits(group(2, 9), 9) == (1, 1)


def test_what_cannot_be_raises_and_changes_nothing() -> None:
    ledger = PrefixLedger(3, 0, SIZE)
    admit(ledger, group(0, 8))
    attempts: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: ledger.allocate(1, 2), OutOfBlocksError, "row 1 asks for 2 blocks, 1 are free"),
        (lambda: ledger.grow(2, ()), OutOfBlocksError, "decoding asks for 2 blocks, 1 are free"),
    ]
    for attempt, error, says in attempts:
        with pytest.raises(error, match=says):
            attempt()
        assert ledger.num_free == 1
        ledger.check()
    with pytest.raises(ValueError, match="row 0 holds 2 blocks, not 1"):
        ledger.free(0, 1)


def test_it_starts_anew() -> None:
    ledger = PrefixLedger(8, 0, SIZE)
    admit(ledger, group(0, 16))
    ledger.free(0, 4)
    ledger.clear()
    ledger.check()
    assert ledger.num_free == 8
    assert ledger.hits(group(1, 16), 16) == (0, 0)


def spoil_references(ledger: PrefixLedger) -> None:
    ledger._tables[0].runs[0].references += 1


def spoil_count(ledger: PrefixLedger) -> None:
    ledger.num_free += 1


def spoil_content(ledger: PrefixLedger) -> None:
    ledger._serving._first.popitem()


@pytest.mark.parametrize("spoil", [spoil_references, spoil_count, spoil_content])
def test_the_check_finds(spoil: Callable[[PrefixLedger], None]) -> None:
    ledger = PrefixLedger(8, 0, SIZE)
    admit(ledger, group(0, 16))
    ledger.check()
    spoil(ledger)
    with pytest.raises(AssertionError):
        ledger.check()


def conversation(row: int, name: str | None, input_tokens: int = 6) -> Request:
    return request(row, input_tokens, None if name is None else PromptContent(conversation=name))


def test_the_key_of_the_block_that_a_request_would_hit_next() -> None:
    """The next block of the prompt is the third."""
    keys = RequestKeys(SIZE)
    asking = conversation(0, "a", 40)
    same, other, own = conversation(1, "a"), conversation(2, "b"), conversation(3, None)
    assert keys.key_at(asking, 2) == keys.key_at(same, 2) != keys.key_at(same, 3)
    assert keys.key_at(asking, 2) != keys.key_at(other, 2)
    assert keys.key_at(own, 2) is None


def test_answers_that_others_may_find_are_counted() -> None:
    keys = RequestKeys(SIZE)
    for asking in (
        conversation(0, "a"),
        conversation(1, None),
        group(2, 8),
        conversation(3, "b"),
        conversation(0, "a"),
    ):
        keys.of(asking)
    assert (keys.num_telling, len(keys)) == (2, 4)
    for row in (0, 1, 2, 0):
        keys.end(row)
    assert (keys.num_telling, len(keys)) == (1, 1)


def prompts(kind: str, count: int) -> list[Request]:
    """Requests of 24 tokens: each begins as one of the last twenty prompts, or is new."""
    rng = random.Random(1)
    said: list[tuple[int, ...]] = [(0,) * 24]
    made = []
    for row in range(count):
        kept = rng.choice((0, 8, 12, 20))
        said.append(rng.choice(said[-20:])[:kept] + tuple(row * 24 + at for at in range(kept, 24)))
        content = {
            "token ids": PromptContent(prompt_token_ids=said[-1]),
            "hashes": PromptContent(block_hashes=said[-1][3::4], hash_block_size=4),
            "long hashes": PromptContent(block_hashes=said[-1][7::8], hash_block_size=8),
            "conversations": PromptContent(conversation=f"c{row // 2}"),
        }
        made.append(request(row, 24, content=content[kind]))
    return made


@pytest.mark.parametrize("kind", ["token ids", "hashes", "long hashes", "conversations"])
def test_texts_that_nothing_holds_are_forgotten(kind: str) -> None:
    """Four requests at a time over 9,000, in room for eight: hits are those of blocks by id, which forget no key."""
    runs, blocks = PrefixLedger(48, 0, SIZE), PrefixCache(48, 0, SIZE)
    at_hand: list[int] = []
    known = found = 0
    for asking in prompts(kind, 9000):
        hits = runs.hits(asking, 24)
        assert hits == blocks.hits(asking, 24)
        found += hits[0]
        for cache in (runs, blocks):
            cache.take_hits(asking, hits[0])
            cache.allocate(asking.row, 6 - hits[0])
            cache.enter(asking, 6)
        at_hand.append(asking.row)
        if len(at_hand) == 4:
            row = at_hand.pop(0)
            for cache in (runs, blocks):
                cache.free(row, 6)
                cache.end(row)
        known = max(known, len(runs.keys._chains))
    runs.check()
    assert found > 9000
    assert 4000 <= known < 4010, "of texts that are held there are a few dozen"


def test_a_run_that_leaves_the_queue_needs_no_collector() -> None:
    """The collector of cycles is off while a simulation runs."""
    ledger = PrefixLedger(8, 0, SIZE)
    gc.collect()
    gc.disable()
    try:
        for row in range(20):
            admit(ledger, group(row, 20, f"text {row}"))
            ledger.free(row, 5)
            ledger.end(row)
        assert sum([type(found).__name__ == "BlockRun" for found in gc.get_objects()]) < 10
    finally:
        gc.enable()
