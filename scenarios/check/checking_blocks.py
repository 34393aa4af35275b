"""A block manager that checks its whole state after every single operation."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from simulator.memory.blocks import BlockManager


class LeakError(AssertionError):
    """Blocks were lost, made up, or owned on both sides."""


class CheckingBlocks(BlockManager):
    """Checks the rules of blocks after every operation, and counts the operations."""

    def __init__(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        super().__init__(num_blocks, num_host_blocks)
        self.operations = 0
        self._inside = False  # an operation that is made of others

    def allocate(self, row: int, num_blocks: int) -> None:
        with self._takes(num_blocks):
            super().allocate(row, num_blocks)

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        with self._takes(num_blocks):
            super().grow(num_blocks, rows)

    def free(self, row: int, num_blocks: int) -> None:
        with self._takes(-num_blocks):
            super().free(row, num_blocks)

    def swap_out(self, row: int, num_blocks: int) -> None:
        with self._takes(-num_blocks, host=num_blocks):
            super().swap_out(row, num_blocks)

    def swap_in(self, row: int, num_blocks: int) -> None:
        with self._takes(num_blocks, host=-num_blocks):
            super().swap_in(row, num_blocks)

    def free_host(self, row: int, num_blocks: int) -> None:
        with self._takes(0, host=-num_blocks):
            super().free_host(row, num_blocks)

    @contextmanager
    def _takes(self, num_blocks: int, host: int = 0) -> Iterator[None]:
        if self._inside:
            yield
            return
        expected = self.num_free - num_blocks, self.num_free_host - host
        self._inside = True
        yield
        self._inside = False
        self.operations += 1
        if (self.num_free, self.num_free_host) != expected:
            raise LeakError(f"{self.num_free} device and {self.num_free_host} host blocks are free, not {expected}")
        try:
            self.check()
        except AssertionError as error:
            raise LeakError(str(error)) from None
        on_device = sum(len(table) for table in self.tables.values())
        on_host = sum(len(table) for table in self.host_tables.values())
        if on_device + self.num_free != self.num_blocks or on_host + self.num_free_host != self.num_host_blocks:
            raise LeakError(f"{on_device} owned and {self.num_free} free of {self.num_blocks} blocks")
        if both := set(self.tables) & set(self.host_tables):
            raise LeakError(f"rows {sorted(both)} own blocks on both sides")
