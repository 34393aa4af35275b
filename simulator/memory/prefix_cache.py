"""KV blocks by id with a prefix cache: vLLM's `BlockPool`, as of 0.33.

A full block enters the cache when it is scheduled, before it is computed. An unused block stays cached until it is
allocated anew, and counts as free. Allocation takes from the front of the free queue. A freed request returns its
blocks last block first: uncached ones to the front, cached ones to the end. Eviction therefore takes the least recently
used block, and the tail of a sequence before its head.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable

from simulator.memory.block_keys import RequestKeys
from simulator.memory.blocks import BlockTables, OutOfBlocksError
from simulator.request import Request


class PrefixCache:
    """Blocks 1 to `num_blocks` (0 is vLLM's null block), each with its references and, once full, its content's key.

    Duplicates are not merged: of several blocks with the same content, the first to enter serves the hits.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.references = [0] * (num_blocks + 1)
        self.tables: dict[int, list[int]] = {}
        self.host_tables: dict[int, list[int]] = {}  # empty: nothing is swapped beside a prefix cache
        self.unknown_first = True  # False before vLLM 0.26: all freed blocks went to the end
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks + 1))
        self._key: list[Hashable | None] = [None] * (num_blocks + 1)
        self._blocks: dict[Hashable, dict[int, None]] = {}
        self._entered: dict[int, int] = {}  # row -> leading blocks of its table that have entered the cache
        self.keys = RequestKeys(block_size)
        self.tell: Callable[[list[Hashable], int], None] | None = None  # of blocks that enter, 1, or are forgotten, -1

    shares_blocks = True

    @property
    def by_id(self) -> BlockTables:
        return self

    @property
    def num_free(self) -> int:
        return len(self._free)

    # Looking

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """Cached leading blocks of the request's `num_tokens` tokens, and how many of these no request uses.

        At least one token is left to compute: of a prompt that is cached whole, the last block does not count.
        """
        keys = self.keys.of(request)
        found = unused = 0
        blocks, references = self._blocks, self.references
        last_unused = False
        for place in range((num_tokens - self.keys.behind) // self.block_size):
            same = blocks.get(keys[place])
            if same is None:
                break
            found += 1
            last_unused = references[next(iter(same))] == 0
            unused += last_unused
        if found and self.keys.drops_hit_block:
            return found - 1, unused - last_unused
        return found, unused

    def freed_with(self, rows: Iterable[int]) -> int:
        """Blocks that only these rows use."""
        used = Counter(block for row in rows for block in self.tables.get(row, ()))
        return sum(count == self.references[block] for block, count in used.items())

    def names(self, request: Request, blocks: int) -> list[Hashable]:
        """See `PrefixLedger.names`."""
        return self.keys.of(request).first(blocks)[:blocks]

    # Taking

    def take_hits(self, request: Request, blocks: int) -> None:
        """Begin the request's table with its first `blocks` blocks, which are cached."""
        keys = self.keys.of(request)
        table = self.tables[request.row] = []
        for place in range(blocks):
            block = next(iter(self._blocks[keys[place]]))
            if self.references[block] == 0:
                del self._free[block]
            self.references[block] += 1
            table.append(block)
        self._entered[request.row] = blocks

    def allocate(self, row: int, num_blocks: int) -> None:
        """Give the request `num_blocks` more blocks, evicting what they held."""
        if num_blocks > len(self._free):
            raise OutOfBlocksError(f"row {row} asks for {num_blocks} blocks, {len(self._free)} are free")
        table = self.tables.setdefault(row, [])
        for _ in range(num_blocks):
            block, _ = self._free.popitem(last=False)
            if self._key[block] is not None:
                self._evict(block)
            self.references[block] += 1
            table.append(block)

    def enter(self, request: Request, full_blocks: int) -> None:
        """Enter the request's first `full_blocks` blocks, full at the latest after this step, into the cache."""
        entered = self._entered.get(request.row, 0)
        if full_blocks <= entered:
            return
        keys = self.keys.of(request)
        table = self.tables[request.row]
        for place in range(entered, full_blocks):
            block, key = table[place], keys[place]
            self._key[block] = key
            self._blocks.setdefault(key, {})[block] = None
            if self.tell is not None:
                self.tell([key], 1)
        self._entered[request.row] = full_blocks

    def settle(self, rows: Iterable[int]) -> None:
        """Do nothing: full blocks entered when they were scheduled."""

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        """A block more for each of `rows`, in order."""
        for row in rows:
            self.allocate(row, 1)

    # Leaving

    def free(self, row: int, num_blocks: int) -> None:
        """Free all blocks of the request; cached ones stay until they are allocated anew.

        `num_blocks` are the blocks of its tokens. A victim that received blocks in this very step holds more.
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
        """Free the blocks of a preempted request: what it computed stays cached, as with `free`."""
        self.free(row, num_blocks)

    def abort(self, row: int, num_blocks: int, num_computed_tokens: int) -> None:
        """Free the blocks of an aborted request: the full ones entered when they were scheduled."""
        self.free(row, num_blocks)

    def clear(self) -> None:
        """Forget all content; no request holds a block."""
        self._free = OrderedDict.fromkeys(range(1, self.num_blocks + 1))
        self._key = [None] * (self.num_blocks + 1)
        self._blocks.clear()
        self._entered.clear()

    def end(self, row: int) -> None:
        """Forget the keys of a request that has ended."""
        self.keys.end(row)

    def _evict(self, block: int) -> None:
        key = self._key[block]
        self._key[block] = None
        same = self._blocks[key]
        del same[block]
        if self.tell is not None:
            self.tell([key], -1)
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
