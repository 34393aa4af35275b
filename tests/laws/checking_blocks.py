"""A block manager that looks after itself: its whole state is checked after every single operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from simulator.blocks import BlockManager


class CheckingBlocks(BlockManager):
    """Checks what must hold of the blocks after every operation, and counts the operations."""

    def __init__(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        super().__init__(num_blocks, num_host_blocks)
        self.operations = 0

    def allocate(self, row: int, num_blocks: int) -> None:
        before = self.num_free
        super().allocate(row, num_blocks)
        assert self.num_free == before - num_blocks
        self._look()

    def grow(self, num_blocks: int, rows: Callable[[int], Iterator[int]], steps: int) -> None:
        before = self.num_free
        super().grow(num_blocks, rows, steps)
        assert self.num_free == before - num_blocks
        self._look()

    def free(self, row: int, num_blocks: int) -> None:
        before = self.num_free
        super().free(row, num_blocks)
        assert self.num_free == before + num_blocks
        self._look()

    def swap_out(self, row: int, num_blocks: int) -> None:
        before = self.num_free, self.num_free_host
        super().swap_out(row, num_blocks)
        assert (self.num_free, self.num_free_host) == (before[0] + num_blocks, before[1] - num_blocks)
        self._look()

    def swap_in(self, row: int, num_blocks: int) -> None:
        before = self.num_free, self.num_free_host
        super().swap_in(row, num_blocks)
        assert (self.num_free, self.num_free_host) == (before[0] - num_blocks, before[1] + num_blocks)
        self._look()

    def _look(self) -> None:
        self.operations += 1
        self.check()
        on_device = sum(len(table) for table in self.tables.values())
        on_host = sum(len(table) for table in self.host_tables.values())
        assert on_device + self.num_free == self.num_blocks
        assert on_host + self.num_free_host == self.num_host_blocks
        assert not set(self.tables) & set(self.host_tables), "a request's blocks are on both sides"

    @property
    def is_empty(self) -> bool:
        """Nobody owns anything."""
        return not self.tables and not self.host_tables and self.num_free == self.num_blocks
