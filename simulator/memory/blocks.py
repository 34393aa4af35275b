"""KV memory as the engine uses it: the protocols, with and without a prefix cache, and blocks by id.

`BlockManager` keeps every block by its id: block tables and a free queue in vLLM's order. `BlockLedger` keeps counts.
Both check, then act: an allocation that fails changes nothing.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol, cast, runtime_checkable

from simulator.memory.block_keys import RequestKeys
from simulator.memory.ledger import BlockLedger, OutOfBlocksError
from simulator.request import Request

__all__ = ["BlockLedger", "BlockManager", "BlockTables", "KVBlocks", "OutOfBlocksError", "SwappableBlocks"]


class BlockTables(Protocol):
    """Blocks by id, for a device whose pages bear the same numbers. Tables are those of rows; 0 is the null block."""

    @property
    def tables(self) -> dict[int, list[int]]: ...

    @property
    def host_tables(self) -> dict[int, list[int]]: ...

    @property
    def references(self) -> list[int]:
        """Requests that use a block, by its id."""

    @property
    def shares_blocks(self) -> bool:
        """True if a block may be in several tables."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_free(self) -> int: ...


class KVBlocks(Protocol):
    """Device KV memory of one replica. A request is named by its row in the workload."""

    @property
    def by_id(self) -> BlockTables | None:
        """These blocks with their ids; None where they are only counted."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_free(self) -> int: ...

    def allocate(self, row: int, num_blocks: int) -> None:
        """Give the request `num_blocks` more blocks. OutOfBlocksError where fewer are free."""

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        """`num_blocks` more: one for each of `rows`, which are looked at only where ids matter."""

    def free(self, row: int, num_blocks: int) -> None:
        """Free all blocks of the request, which holds `num_blocks`."""


@runtime_checkable
class SwappableBlocks(KVBlocks, Protocol):
    """KV memory whose blocks can be swapped to the host. Prefix caches cannot."""

    @property
    def num_host_blocks(self) -> int: ...

    @property
    def num_free_host(self) -> int: ...

    def swap_out(self, row: int, num_blocks: int) -> None:
        """Move the request's `num_blocks` blocks to the host."""

    def swap_in(self, row: int, num_blocks: int) -> None:
        """Move the request's `num_blocks` blocks back to the device."""

    def free_host(self, row: int, num_blocks: int) -> None:
        """Free the request's `num_blocks` blocks on the host."""


class BlockManager:
    """Blocks by id, each in one table at most: sharing is for the prefix caches.

    The free queue is vLLM's: allocation takes from its front, and the blocks of a freed request return to the front,
    last block first (as vLLM 0.33 does with blocks outside the prefix cache).
    """

    shares_blocks = False

    def __init__(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.references = [0] * (num_blocks + 1)  # block 0 is the null block: never used
        self.tables: dict[int, list[int]] = {}
        self.host_tables: dict[int, list[int]] = {}
        self._free = deque(range(1, num_blocks + 1))
        self._free_host = deque(range(num_host_blocks))

    @property
    def by_id(self) -> BlockTables:
        return self

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_free_host(self) -> int:
        return len(self._free_host)

    def allocate(self, row: int, num_blocks: int) -> None:
        if num_blocks > len(self._free):
            raise OutOfBlocksError(f"row {row} asks for {num_blocks} blocks, {len(self._free)} are free")
        table = self.tables.setdefault(row, [])
        for _ in range(num_blocks):
            block = self._free.popleft()
            self.references[block] = 1
            table.append(block)

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        if num_blocks > len(self._free):
            raise OutOfBlocksError(f"decoding asks for {num_blocks} blocks, {len(self._free)} are free")
        for row in rows:
            self.allocate(row, 1)

    def free(self, row: int, num_blocks: int) -> None:
        table = self.tables.get(row, [])
        if len(table) != num_blocks:
            raise ValueError(f"row {row} holds {len(table)} blocks, not {num_blocks}")
        self.tables.pop(row, None)
        for block in reversed(table):
            self.references[block] = 0
            self._free.appendleft(block)

    def swap_out(self, row: int, num_blocks: int) -> None:
        if num_blocks > len(self._free_host):
            raise OutOfBlocksError(f"row {row} needs {num_blocks} host blocks, {len(self._free_host)} are free")
        self.free(row, num_blocks)
        self.host_tables[row] = [self._free_host.popleft() for _ in range(num_blocks)]

    def swap_in(self, row: int, num_blocks: int) -> None:
        self._check_host(row, num_blocks)
        self.allocate(row, num_blocks)
        self.free_host(row, num_blocks)

    def free_host(self, row: int, num_blocks: int) -> None:
        self._check_host(row, num_blocks)
        self._free_host.extendleft(reversed(self.host_tables.pop(row, [])))

    def _check_host(self, row: int, num_blocks: int) -> None:
        found = len(self.host_tables.get(row, []))
        if found != num_blocks:
            raise ValueError(f"row {row} has {found} blocks on the host, not {num_blocks}")

    def check(self) -> None:
        """Raise AssertionError unless each block is either free or in as many tables as its references say."""
        owned = [0] * (self.num_blocks + 1)
        for table in self.tables.values():
            for block in table:
                owned[block] += 1
        assert owned == self.references, "references differ from the tables"
        assert owned[0] == 0, "the null block is in use"
        free = sorted(self._free)
        assert free == [b for b in range(1, self.num_blocks + 1) if owned[b] == 0], "free queue differs"
        host = sorted([*self._free_host, *(b for table in self.host_tables.values() for b in table)])
        assert host == list(range(self.num_host_blocks)), "host blocks leaked"


# Memory with a prefix cache: vLLM's `PrefixCache` or `PrefixLedger`, and SGLang's `RadixCache`.


@runtime_checkable
class Cache(KVBlocks, Protocol):
    """KV blocks that are found again by their content. Cached blocks that no request uses count as free.

    Nothing is swapped beside a prefix cache: the constructors take the number of host blocks and do not use it.
    """

    @property
    def keys(self) -> RequestKeys | None:
        """Keys of the requests at hand; None where no block enters that decoding fills, but those of prompts alone."""

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """Cached leading blocks of the request's `num_tokens` tokens, and how many of these no request uses.

        At least one token is left to compute. The call changes nothing.
        """

    def freed_with(self, held: Mapping[int, int]) -> int:
        """Blocks that come free when all rows of `held` leave; `held` maps a row to the blocks it holds."""

    def take_hits(self, request: Request, blocks: int) -> None:
        """Admit the request with its first `blocks` blocks, which are cached."""

    def enter(self, request: Request, full_blocks: int) -> None:
        """Note that the request's first `full_blocks` blocks are full, at the latest after this step."""

    def settle(self, rows: Iterable[int]) -> None:
        """Note that what was computed of the prompts of these rows is known, in this order."""

    def lose(self, row: int, num_blocks: int) -> None:
        """Free the blocks of a preempted request; `free` is for finished ones."""

    def abort(self, row: int, num_blocks: int, num_computed_tokens: int) -> None:
        """Free the blocks of an aborted request; what it computed stays cached."""

    def clear(self) -> None:
        """Forget all content; no request may hold a block."""

    def end(self, row: int) -> None:
        """Forget the content of a request that has ended."""


_kinds: dict[type, tuple[bool, bool]] = {}


def kinds_of(blocks: KVBlocks) -> tuple[SwappableBlocks | None, Cache | None]:
    """The blocks as what else they are; None for what they are not. A class is looked at once, as that takes long."""
    kind = type(blocks)
    if kind not in _kinds:
        _kinds[kind] = isinstance(blocks, SwappableBlocks), isinstance(blocks, Cache)
    can_swap, caches = _kinds[kind]
    return cast("SwappableBlocks", blocks) if can_swap else None, cast("Cache", blocks) if caches else None
