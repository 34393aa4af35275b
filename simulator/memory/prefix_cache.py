"""KV blocks by id with a prefix cache: vLLM's `BlockPool`, as of 0.33.

A full block enters the cache when it is scheduled, before it is computed. A block that nobody uses stays in the cache
until it is taken for something else: such blocks count as free. The free queue is taken from the front; a request that
leaves puts its blocks there last block first, those that the cache does not know at the front, the others at the end.
So the least recently used goes first, and the tail of a sequence before its head.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable

from simulator.memory.block_keys import BlockKeys, Chains
from simulator.memory.blocks import BlockTables, OutOfBlocksError
from simulator.request import Request


class PrefixCache:
    """Blocks 1 to `num_blocks` (0 is vLLM's null block), each with its references and, once full, its content's key.

    Several blocks may hold the same content: duplicates are not merged, and the first to enter serves the hits.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.num_free_host = num_host_blocks
        self.block_size = block_size
        self.references = [0] * (num_blocks + 1)
        self.tables: dict[int, list[int]] = {}
        self.host_tables: dict[int, list[int]] = {}  # empty: nothing is swapped beside a prefix cache
        self.unknown_first = True  # not so before vLLM 0.26: a request then put all its blocks at the end
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))
        self._key: list[Hashable | None] = [None] * (num_blocks + 1)
        self._blocks: dict[Hashable, dict[int, None]] = {}
        self._entered: dict[int, int] = {}  # blocks of a row's table that have been offered to the cache
        self._keys: dict[int, BlockKeys] = {}
        self._chains: Chains = {}

    enters_decoded = True
    shares = True

    @property
    def by_id(self) -> BlockTables:
        return self

    @property
    def num_free(self) -> int:
        return len(self._free)

    # Looking

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """How many leading blocks of the request's `num_tokens` tokens are cached, and how many of those nobody uses.

        At least one token is left to compute: of a prompt that is cached whole, the last block is not counted.
        """
        keys = self._keys_of(request)
        found = unused = 0
        blocks, references = self._blocks, self.references
        for place in range((num_tokens - 1) // self.block_size):
            same = blocks.get(keys[place])
            if same is None:
                break
            found += 1
            unused += references[next(iter(same))] == 0
        return found, unused

    def _keys_of(self, request: Request) -> BlockKeys:
        keys = self._keys.get(request.row)
        if keys is None:
            keys = self._keys[request.row] = BlockKeys(request, self.block_size, self._chains)
        return keys

    def freed_with(self, rows: Iterable[int]) -> int:
        """How many blocks are in use by these rows alone."""
        used = Counter(block for row in rows for block in self.tables.get(row, ()))
        return sum(count == self.references[block] for block, count in used.items())

    # Taking

    def take_hits(self, request: Request, blocks: int) -> None:
        """The request begins with its `blocks` leading blocks, which are cached."""
        keys = self._keys_of(request)
        table = self.tables[request.row] = []
        for place in range(blocks):
            block = next(iter(self._blocks[keys[place]]))
            if self.references[block] == 0:
                del self._free[block]
            self.references[block] += 1
            table.append(block)
        self._entered[request.row] = blocks

    def allocate(self, row: int, num_blocks: int) -> None:
        """`num_blocks` more for the request; what they held is forgotten."""
        if num_blocks > len(self._free):
            raise OutOfBlocksError(f"row {row} asks for {num_blocks} blocks, {len(self._free)} are free")
        table = self.tables.setdefault(row, [])
        for _ in range(num_blocks):
            block, _ = self._free.popitem(last=False)
            if self._key[block] is not None:
                self._forget(block)
            self.references[block] += 1
            table.append(block)

    def enter(self, request: Request, full_blocks: int) -> None:
        """The first `full_blocks` blocks of the request are full, or will be after this step: they enter the cache."""
        entered = self._entered.get(request.row, 0)
        if full_blocks <= entered:
            return
        keys = self._keys_of(request)
        table = self.tables[request.row]
        for place in range(entered, full_blocks):
            block, key = table[place], keys[place]
            self._key[block] = key
            self._blocks.setdefault(key, {})[block] = None
        self._entered[request.row] = full_blocks

    def settle(self, rows: Iterable[int]) -> None:
        """Nothing: full blocks have entered when they were scheduled."""

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        """A block more for each of `rows`, in order."""
        for row in rows:
            self.allocate(row, 1)

    def swap_out(self, row: int, num_blocks: int) -> None:
        raise NotImplementedError("swapping beside a prefix cache")

    def swap_in(self, row: int, num_blocks: int) -> None:
        raise NotImplementedError("swapping beside a prefix cache")

    # Leaving

    def free(self, row: int, num_blocks: int) -> None:
        """All blocks that the request holds; what is cached of them stays until it is taken.

        `num_blocks` are those of the tokens it has. A victim that this very step had given more blocks to has more.
        """
        table = self.tables.pop(row, [])
        if len(table) < num_blocks:
            raise ValueError(f"row {row} holds {len(table)} blocks, not {num_blocks}")
        self._entered.pop(row, None)
        unknown = []
        for block in reversed(table):
            self.references[block] -= 1
            if self.references[block]:
                continue
            if self._key[block] is None and self.unknown_first:
                unknown.append(block)
            else:
                self._free[block] = None
        for block in reversed(unknown):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def lose(self, row: int, num_blocks: int) -> None:
        """As `free`: what a victim had computed is cached too."""
        self.free(row, num_blocks)

    def end(self, row: int) -> None:
        """The request will not come back."""
        self._keys.pop(row, None)

    def _forget(self, block: int) -> None:
        key = self._key[block]
        self._key[block] = None
        same = self._blocks[key]
        del same[block]
        if not same:
            del self._blocks[key]

    def check(self) -> None:
        """Raise AssertionError unless references, free queue and cache agree."""
        owned = [0] * (self.num_blocks + 1)
        for table in self.tables.values():
            for block in table:
                owned[block] += 1
        assert owned == self.references, "references differ from the tables"
        assert sorted(self._free) == [b for b in range(1, self.num_blocks + 1) if owned[b] == 0], "free queue differs"
        cached = {block: key for key, same in self._blocks.items() for block in same}
        assert all(self._key[block] == key for block, key in cached.items()), "cache differs from the keys"
        assert len(cached) == sum(key is not None for key in self._key), "a key is not in the cache"
