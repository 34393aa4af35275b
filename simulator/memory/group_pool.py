"""Blocks that several KV groups share: vLLM's `BlockPool`, as of 0.33, with keys that name a group.

A block belongs to one group at a time, and may be found under several keys: of its whole content, and of a beginning
of it. Allocation takes from the front of the free queue and forgets the keys. Blocks without a key return to the front.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from simulator.memory.ledger import OutOfBlocksError

NULL = 0
"""The block that stands in tables where nothing is kept."""


class GroupPool:
    """Blocks 1 to `num_blocks`, with references, keys, and the order in which they are taken."""

    def __init__(self, num_blocks: int, groups: int) -> None:
        self.num_blocks = num_blocks
        self.references = [0] * (num_blocks + 1)
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))
        self._cached: list[dict[Hashable, dict[int, None]]] = [{} for _ in range(groups)]
        self._keys: dict[int, list[tuple[int, Hashable]]] = {}  # of a block, the one that it got first in front
        self.tokens_of: dict[int, int] = {}  # tokens up to the end of what the first key names

    @property
    def num_free(self) -> int:
        return len(self._free)

    def found(self, key: Hashable, groups: Sequence[int]) -> list[int] | None:
        """The first block under this key in each of these groups; None where one has none."""
        blocks = []
        for group in groups:
            same = self._cached[group].get(key)
            if same is None:
                return None
            blocks.append(next(iter(same)))
        return blocks

    def take(self, num_blocks: int) -> list[int]:
        """Take blocks from the front of the queue, forgetting what they held."""
        if num_blocks > len(self._free):
            raise OutOfBlocksError(f"{num_blocks} blocks are asked for, {len(self._free)} are free")
        first, references, keys = self._free.popitem, self.references, self._keys
        blocks = [first(last=False)[0] for _ in range(num_blocks)]
        for block in blocks:
            if block in keys:
                self.forget(block)
            references[block] = 1
        return blocks

    def use(self, blocks: Iterable[int]) -> None:
        """Let one more request use these blocks."""
        for block in blocks:
            if block != NULL:
                if not self.references[block]:
                    del self._free[block]
                self.references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Let one request fewer use these blocks; the first of those that come free is evicted first."""
        unknown: list[int] = []
        free, references, keys = self._free, self.references, self._keys
        for block in blocks:
            if block == NULL:
                continue
            references[block] -= 1
            if references[block]:
                continue
            if block in keys:
                free[block] = None
            else:
                unknown.append(block)
        to_front = free.move_to_end
        for block in reversed(unknown):
            free[block] = None
            to_front(block, last=False)

    # Keys

    def first_key(self, block: int) -> tuple[int, Hashable] | None:
        """The key that a block got first, with its group; None where it has none."""
        keys = self._keys.get(block)
        return keys[0] if keys else None

    def enter(self, block: int, group: int, key: Hashable, tokens: int, *, anew: bool = False) -> None:
        """Let a block be found under a key that ends at `tokens`. A longer prefix takes the place of shorter ones.

        `anew`: the block holds something else now, and loses its keys.
        """
        entry = (group, key)
        known = entry in self._keys.get(block, ())
        if anew or (not known and block in self._keys and self.tokens_of[block] < tokens):
            self.forget(block)
            known = False
        if known:
            return
        if block not in self._keys:
            self.tokens_of[block] = tokens
        self._keys.setdefault(block, []).append(entry)
        self._cached[group].setdefault(key, {})[block] = None

    def forget(self, block: int) -> list[tuple[int, Hashable]]:
        """Forget all keys of a block; returns them."""
        keys = self._keys.pop(block, [])
        self.tokens_of.pop(block, None)
        for group, key in keys:
            same = self._cached[group][key]
            del same[block]
            if not same:
                del self._cached[group][key]
        return keys

    def move_keys(self, source: int, target: int) -> None:
        """Let `target` be found instead of `source`."""
        tokens = self.tokens_of.get(source, 0)
        for number, (group, key) in enumerate(self.forget(source)):
            self.enter(target, group, key, tokens if number == 0 else 0)

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless references, free queue and keys agree; nothing else holds a block."""
        owned = [0] * (self.num_blocks + 1)
        for table in tables:
            for block in table:
                owned[block] += block != NULL
        assert owned == self.references, "references differ from the tables of all groups"
        assert sorted(self._free) == [b for b in range(1, self.num_blocks + 1) if not owned[b]], "free queue differs"
        cached = {(b, group, key) for group, of in enumerate(self._cached) for key, same in of.items() for b in same}
        assert cached == {(b, *entry) for b, keys in self._keys.items() for entry in keys}, "cache differs from keys"


class PlainPool(GroupPool):
    """A pool without a prefix cache: which of its free blocks is taken next does not matter, and none is shared."""

    def __init__(self, num_blocks: int, groups: int) -> None:
        super().__init__(num_blocks, groups)
        self._free.clear()
        self._left = list(range(num_blocks, 0, -1))

    @property
    def num_free(self) -> int:
        return len(self._left)

    def take(self, num_blocks: int) -> list[int]:
        """See `GroupPool.take`."""
        left = len(self._left) - num_blocks
        if left < 0:
            raise OutOfBlocksError(f"{num_blocks} blocks are asked for, {len(self._left)} are free")
        blocks = self._left[left:]
        del self._left[left:]
        references = self.references
        for block in blocks:
            references[block] = 1
        return blocks

    def release(self, blocks: Iterable[int]) -> None:
        """See `GroupPool.release`."""
        held = [block for block in blocks if block != NULL]
        references = self.references
        for block in held:
            references[block] = 0
        self._left += held

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """See `GroupPool.check`."""
        self._free = OrderedDict.fromkeys(self._left)
        super().check(tables)
        self._free.clear()
