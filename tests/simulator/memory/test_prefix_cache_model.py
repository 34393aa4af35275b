"""The prefix cache beside a naive one made of lists, whatever is done to both."""

from collections.abc import Hashable
from itertools import accumulate

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from simulator.memory.block_keys import BlockKeys, Chains
from simulator.memory.blocks import OutOfBlocksError
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.request import PromptContent, Request
from tests.examples import examples
from tests.simulator.memory.test_prefix_cache import request


class NaiveCache:
    """What the cache should do, from lists: slow, and without anything that could get out of step."""

    def __init__(self, num_blocks: int) -> None:
        self.queue = list(range(1, num_blocks + 1))
        self.tables: dict[int, list[int]] = {}
        self.entered: list[tuple[int, Hashable]] = []  # (block, key) in the order in which they entered

    def first(self, key: Hashable) -> int | None:
        return next((block for block, held in self.entered if held == key), None)

    def known(self, block: int) -> bool:
        return any(held == block for held, _ in self.entered)

    def users(self, block: int) -> int:
        return sum(table.count(block) for table in self.tables.values())

    def run_of_hits(self, keys: list[Hashable]) -> list[int]:
        run: list[int] = []
        for key in keys:
            block = self.first(key)
            if block is None:
                break
            run.append(block)
        return run

    def take_hits(self, row: int, run: list[int]) -> None:
        self.queue = [block for block in self.queue if block not in run]
        self.tables[row] = list(run)

    def allocate(self, row: int, count: int) -> None:
        taken, self.queue = self.queue[:count], self.queue[count:]
        self.entered = [entry for entry in self.entered if entry[0] not in taken]
        self.tables.setdefault(row, []).extend(taken)

    def free(self, row: int) -> None:
        walk = [block for block in reversed(self.tables.pop(row)) if not self.users(block)]
        front = [block for block in walk if not self.known(block)]
        self.queue = front + self.queue + [block for block in walk if self.known(block)]


WORDS = st.text("ab", min_size=1, max_size=14)


def ahead(before: int, token: int) -> int:
    """The hash of a block that follows another."""
    return before * 131 + token


class CacheAndModel(RuleBasedStateMachine):
    """Requests that repeat each other come, grow, fill blocks, leave and return, in a memory that is too small."""

    @initialize(blocks=st.integers(1, 14), size=st.sampled_from([1, 2, 3]))
    def begin(self, blocks: int, size: int) -> None:
        self.size = size
        self.cache, self.model = PrefixCache(blocks, 0, size), NaiveCache(blocks)
        self.ledger = PrefixLedger(blocks, 0, size)
        self.chains = Chains()
        self.requests: dict[int, Request] = {}
        self.keys: dict[int, BlockKeys] = {}
        self.tokens: dict[int, int] = {}  # of those who hold blocks
        self.full: dict[int, int] = {}
        self.gone: list[int] = []  # preempted: they may come back

    def told(self, row: int, blocks: int) -> list[Hashable]:
        return [self.keys[row][place] for place in range(blocks)]

    def enters(self, row: int, num_tokens: int) -> None:
        """A request of so many tokens is admitted, with all of its prompt or with the hits alone."""
        model, cache, asking = self.model, self.cache, self.requests[row]
        run = model.run_of_hits(self.told(row, (num_tokens - 1) // self.size))
        unused = sum(not model.users(block) for block in run)
        assert cache.hits(asking, num_tokens) == self.ledger.hits(asking, num_tokens) == (len(run), unused)
        cache.take_hits(asking, len(run))
        self.ledger.take_hits(asking, len(run))
        model.take_hits(row, run)
        self.tokens[row], self.full[row] = len(run) * self.size, len(run)
        needed = -(-num_tokens // self.size) - len(run)
        if needed > len(model.queue):
            for either in (cache, self.ledger):
                with pytest.raises(OutOfBlocksError):
                    either.allocate(row, needed)
            return
        cache.allocate(row, needed)
        self.ledger.allocate(row, needed)
        model.allocate(row, needed)
        self.tokens[row] = num_tokens
        self.fills(row)

    def fills(self, row: int) -> None:
        full = self.tokens[row] // self.size
        self.cache.enter(self.requests[row], full)
        self.ledger.enter(self.requests[row], full)
        for place in range(self.full[row], full):
            self.model.entered.append((self.model.tables[row][place], self.keys[row][place]))
        self.full[row] = max(full, self.full[row])

    @rule(prompt=WORDS, answer=st.text("ab", max_size=6), kind=st.sampled_from(["ids", "hashes", "talk", "group", ""]))
    def comes(self, prompt: str, answer: str, kind: str) -> None:
        row = len(self.requests)
        ids, told = tuple(map(ord, prompt)), tuple(map(ord, answer))
        contents = {
            "ids": PromptContent(prompt_token_ids=ids, output_token_ids=told),
            "hashes": PromptContent(
                block_hashes=tuple(accumulate(ids, ahead))[: 1 + len(ids) // 2], hash_block_size=self.size
            ),
            "talk": PromptContent(conversation=prompt[0], prefix_group=prompt[-1], prefix_tokens=len(answer)),
            "group": PromptContent(prefix_group=prompt[0], prefix_tokens=2 * len(answer)),
        }
        self.requests[row] = request(row, len(prompt), contents.get(kind))
        self.keys[row] = BlockKeys(self.requests[row], self.size, self.chains)
        self.enters(row, len(prompt))

    @rule(data=st.data())
    def returns(self, data: st.DataObject) -> None:
        if self.gone:
            row = data.draw(st.sampled_from(self.gone))
            self.gone.remove(row)
            self.enters(row, self.requests[row].input_tokens + data.draw(st.integers(0, 5)))

    @rule(data=st.data(), tokens=st.integers(1, 3))
    def goes_on(self, data: st.DataObject, tokens: int) -> None:
        if not self.tokens:
            return
        row = data.draw(st.sampled_from(sorted(self.tokens)))
        after = self.tokens[row] + tokens
        needed = -(-after // self.size) - len(self.model.tables[row])
        if needed > len(self.model.queue):
            return
        if needed == 1:
            self.cache.grow(1, iter([row]))
            self.ledger.grow(1, ())
        elif needed > 0:
            self.cache.allocate(row, needed)
            self.ledger.allocate(row, needed)
        self.model.allocate(row, max(0, needed))
        self.tokens[row] = after
        self.fills(row)

    @rule(data=st.data(), comes_back=st.booleans())
    def leaves(self, data: st.DataObject, comes_back: bool) -> None:
        if not self.tokens:
            return
        row = data.draw(st.sampled_from(sorted(self.tokens)))
        alone = sum(self.model.users(block) == 1 for block in self.model.tables[row])
        blocks = -(-self.tokens.pop(row) // self.size)
        assert self.cache.freed_with([row]) == self.ledger.freed_with({row: blocks}) == alone
        before = self.cache.num_free
        self.cache.free(row, blocks)
        assert self.cache.num_free == before + alone
        self.model.free(row)
        if comes_back:
            self.gone.append(row)
            self.ledger.lose(row, blocks)
        else:
            self.cache.end(row)
            self.ledger.free(row, blocks)
            self.ledger.end(row)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        self.ledger.check()
        assert list(self.cache._free) == self.model.queue
        assert self.cache.tables == self.model.tables
        assert self.cache.num_free == self.ledger.num_free == len(self.model.queue)
        for row, asking in self.requests.items():
            run = self.model.run_of_hits(self.told(row, (asking.input_tokens - 1) // self.size))
            assert self.cache.hits(asking, asking.input_tokens)[0] == len(run)
            if row in self.gone:
                assert self.ledger.hits(asking, asking.input_tokens)[0] == len(run)
            other = asking._replace(row=-2 - row)  # who says the same, and has nothing of its own
            assert self.ledger.hits(other, asking.input_tokens) == self.cache.hits(other, asking.input_tokens)
            self.ledger.end(other.row)
            self.cache.end(other.row)


TestCacheAndModel = CacheAndModel.TestCase
TestCacheAndModel.settings = examples(150, stateful_step_count=30)
