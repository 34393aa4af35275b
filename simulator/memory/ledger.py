"""KV memory as counts, which suffice as long as no block is shared and no device reads one."""

from collections.abc import Iterable


class OutOfBlocksError(Exception):
    """An allocation exceeds the free blocks: the caller did not check."""


class BlockLedger:
    """Free blocks of device and host, as counts."""

    __slots__ = ("num_blocks", "num_free", "num_free_host", "num_host_blocks")

    def __init__(self, num_blocks: int, num_host_blocks: int = 0) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.num_host_blocks = self.num_free_host = num_host_blocks

    @property
    def by_id(self) -> None:
        return None

    def allocate(self, row: int, num_blocks: int) -> None:
        if num_blocks > self.num_free:
            raise OutOfBlocksError(f"row {row} asks for {num_blocks} blocks, {self.num_free} are free")
        self.num_free -= num_blocks

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        if num_blocks > self.num_free:
            raise OutOfBlocksError(f"decoding asks for {num_blocks} blocks, {self.num_free} are free")
        self.num_free -= num_blocks

    def free(self, row: int, num_blocks: int) -> None:
        self.num_free += num_blocks

    def swap_out(self, row: int, num_blocks: int) -> None:
        if num_blocks > self.num_free_host:
            raise OutOfBlocksError(f"row {row} needs {num_blocks} host blocks, {self.num_free_host} are free")
        self.num_free_host -= num_blocks
        self.num_free += num_blocks

    def swap_in(self, row: int, num_blocks: int) -> None:
        self.allocate(row, num_blocks)
        self.num_free_host += num_blocks

    def free_host(self, row: int, num_blocks: int) -> None:
        self.num_free_host += num_blocks
