"""KV blocks: two accounts of the same thing, and vLLM's order of the free ones."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from simulator.memory.blocks import BlockLedger, BlockManager, OutOfBlocksError
from tests.examples import examples


def snapshot(blocks: BlockLedger | BlockManager) -> tuple[Any, ...]:
    """All of its state."""
    if isinstance(blocks, BlockManager):
        tables = {row: tuple(table) for row, table in blocks.tables.items()}
        host = {row: tuple(table) for row, table in blocks.host_tables.items()}
        return tuple(blocks.references), tables, host, tuple(blocks._free), tuple(blocks._free_host)
    return blocks.num_free, blocks.num_free_host


def test_free_blocks_are_taken_from_the_front_and_put_back_there() -> None:
    """vLLM's queue: block 0 is never used, and the last block of a table is the first to be put back."""
    blocks = BlockManager(6)
    blocks.allocate(7, 2)
    blocks.allocate(8, 3)
    assert blocks.tables == {7: [1, 2], 8: [3, 4, 5]}
    blocks.free(7, 2)
    blocks.allocate(9, 3)
    assert blocks.tables[9] == [1, 2, 6]
    blocks.free(8, 3)
    blocks.free(9, 3)
    blocks.allocate(1, 6)
    assert blocks.tables[1] == [1, 2, 6, 3, 4, 5]
    blocks.check()


def test_growing_goes_by_the_order_of_the_rows() -> None:
    blocks = BlockManager(6)
    rows = iter([8, 7, 8])
    blocks.allocate(7, 1)
    blocks.allocate(8, 1)
    blocks.grow(3, rows)
    assert blocks.tables == {7: [1, 4], 8: [2, 3, 5]}
    ledger = BlockLedger(6)
    ledger.allocate(7, 1)
    ledger.allocate(8, 1)
    rows = iter([8, 7, 8])
    ledger.grow(3, rows)
    assert ledger.num_free == blocks.num_free == 1
    assert next(rows) == 8, "a ledger has no need of rows"


def test_swapping_moves_blocks_to_the_other_side() -> None:
    for blocks in (BlockManager(5, 4), BlockLedger(5, 4)):
        blocks.allocate(1, 3)
        blocks.swap_out(1, 3)
        assert (blocks.num_free, blocks.num_free_host) == (5, 1)
        blocks.allocate(2, 2)
        blocks.swap_in(1, 3)
        assert (blocks.num_free, blocks.num_free_host) == (0, 4)
    assert isinstance(blocks, BlockLedger)


def test_the_ids_of_a_swap() -> None:
    blocks = BlockManager(5, 4)
    blocks.allocate(1, 3)
    blocks.swap_out(1, 3)
    assert (blocks.tables, blocks.host_tables) == ({}, {1: [0, 1, 2]})
    blocks.allocate(2, 2)
    blocks.swap_in(1, 3)
    assert (blocks.tables, blocks.host_tables) == ({2: [1, 2], 1: [3, 4, 5]}, {})
    blocks.check()


def test_blocks_on_the_host_are_freed_there() -> None:
    for blocks in (BlockManager(5, 4), BlockLedger(5, 4)):
        blocks.allocate(1, 3)
        blocks.swap_out(1, 3)
        blocks.free_host(1, 3)
        assert (blocks.num_free, blocks.num_free_host) == (5, 4)
    named = BlockManager(5, 4)
    named.allocate(1, 3)
    named.swap_out(1, 3)
    with pytest.raises(ValueError, match="row 1 has 3 blocks on the host, not 2"):
        named.free_host(1, 2)
    named.free_host(1, 3)
    named.check()
    assert named.host_tables == {}


FULL = {
    "allocate": lambda blocks: blocks.allocate(3, 2),
    "grow": lambda blocks: blocks.grow(2, [1, 2]),
    "swap out": lambda blocks: blocks.swap_out(1, 4),
    "swap in": lambda blocks: blocks.swap_in(9, 2),
}


@pytest.mark.parametrize("make", [BlockManager, BlockLedger])
@pytest.mark.parametrize("operation", FULL)
def test_an_allocation_that_fails_changes_nothing(make: Any, operation: str) -> None:
    blocks = make(8, 3)
    blocks.allocate(9, 2)
    blocks.swap_out(9, 2)
    blocks.allocate(1, 4)
    blocks.allocate(2, 3)
    before = snapshot(blocks)
    with pytest.raises(OutOfBlocksError, match="1 are free"):
        FULL[operation](blocks)
    assert snapshot(blocks) == before


WRONG = {
    "free fewer": lambda blocks: blocks.free(1, 2),
    "free more": lambda blocks: blocks.free(1, 4),
    "free what nobody has": lambda blocks: blocks.free(5, 1),
    "swap out fewer": lambda blocks: blocks.swap_out(1, 2),
    "swap in what is not out": lambda blocks: blocks.swap_in(1, 3),
    "swap in fewer": lambda blocks: blocks.swap_in(2, 1),
}


@pytest.mark.parametrize("operation", WRONG)
def test_a_wrong_count_is_found_out_and_changes_nothing(operation: str) -> None:
    blocks = BlockManager(8, 6)
    blocks.allocate(1, 3)
    blocks.allocate(2, 2)
    blocks.swap_out(2, 2)
    before = snapshot(blocks)
    with pytest.raises(ValueError, match="blocks"):
        WRONG[operation](blocks)
    assert snapshot(blocks) == before


DAMAGE = {
    "a block owned twice": lambda blocks: blocks.tables[1].append(blocks.tables[2][0]),
    "a reference too many": lambda blocks: blocks.references.__setitem__(1, 2),
    "a block lost": lambda blocks: blocks._free.popleft(),
    "a block both free and owned": lambda blocks: blocks._free.append(blocks.tables[1][0]),
    "the null block in use": lambda blocks: blocks.tables[1].append(0),
    "a host block lost": lambda blocks: blocks._free_host.pop(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_finds_damage(damage: str) -> None:
    blocks = BlockManager(8, 3)
    blocks.allocate(1, 2)
    blocks.allocate(2, 2)
    blocks.check()
    DAMAGE[damage](blocks)
    with pytest.raises(AssertionError):
        blocks.check()


class TwoAccounts(RuleBasedStateMachine):
    """Whatever is done, the ledger counts what the manager knows by id, and a model of two dictionaries agrees."""

    rows: Bundle[int] = Bundle("rows")
    swapped: Bundle[int] = Bundle("swapped")

    @initialize(device=st.integers(0, 12), host=st.integers(0, 6))
    def begin(self, device: int, host: int) -> None:
        self.device, self.host = device, host
        self.manager, self.ledger = BlockManager(device, host), BlockLedger(device, host)
        self.owned: dict[int, int] = {}
        self.out: dict[int, int] = {}
        self.next_row = 0

    def both(self, fits: bool, operation: str, *arguments: Any) -> bool:
        """Do it to both; they refuse together, and exactly if it does not fit."""
        for blocks in (self.manager, self.ledger):
            if fits:
                getattr(blocks, operation)(*arguments)
            else:
                with pytest.raises(OutOfBlocksError):
                    getattr(blocks, operation)(*arguments)
        return fits

    def free(self) -> int:
        return self.device - sum(self.owned.values())

    @rule(target=rows, blocks=st.integers(0, 5))
    def enter(self, blocks: int) -> int:
        self.next_row += 1
        if self.both(blocks <= self.free(), "allocate", self.next_row, blocks):
            self.owned[self.next_row] = blocks
        else:
            self.owned[self.next_row] = 0
        return self.next_row

    @rule(row=rows, blocks=st.integers(0, 3))
    def take_more(self, row: int, blocks: int) -> None:
        if self.both(blocks <= self.free(), "allocate", row, blocks):
            self.owned[row] += blocks

    @rule(growing=st.lists(rows, max_size=4))
    def grow(self, growing: list[int]) -> None:
        if self.both(len(growing) <= self.free(), "grow", len(growing), growing):
            for row in growing:
                self.owned[row] += 1

    @rule(row=consumes(rows))
    def leave(self, row: int) -> None:
        self.both(True, "free", row, self.owned.pop(row))

    @rule(target=swapped, row=consumes(rows))
    def swap_out(self, row: int) -> Any:
        blocks = self.owned[row]
        if self.both(blocks <= self.host - sum(self.out.values()), "swap_out", row, blocks):
            self.out[row] = self.owned.pop(row)
            return row
        self.leave(row)
        return multiple()

    @rule(target=rows, row=consumes(swapped))
    def swap_in(self, row: int) -> Any:
        blocks = self.out[row]
        if self.both(blocks <= self.free(), "swap_in", row, blocks):
            self.owned[row] = self.out.pop(row)
            return row
        return multiple()  # it stays on the host for ever

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        assert self.manager.num_free == self.ledger.num_free == self.free()
        assert self.manager.num_free_host == self.ledger.num_free_host == self.host - sum(self.out.values())
        assert {row: len(table) for row, table in self.manager.tables.items() if table} == {
            row: blocks for row, blocks in self.owned.items() if blocks
        }


TestTwoAccounts = TwoAccounts.TestCase
TestTwoAccounts.settings = examples(60, stateful_step_count=25)
