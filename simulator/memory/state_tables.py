"""Block tables of one KV group with states, kept where blocks end for other requests to go on from: vLLM's align mode.

The rules are those of `MambaManager` in vllm/v1/core/single_type_kv_cache_manager.py of 0.33.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from simulator.division import cdiv
from simulator.hardware.kv_groups import LayerCache
from simulator.memory.block_keys import BlockKeys
from simulator.memory.group_pool import NULL, GroupPool
from simulator.memory.group_tables import GroupRules, GroupTables, Reach


class Saving(NamedTuple):
    """How states are saved inside a chunk, and where: see `saves_inside`."""

    hash_size: int
    block_size: int
    alignment: int | None


def saves_inside(saving: Saving, start: int, end: int, at: int) -> bool:
    """Return whether a chunk can save its state after `at` tokens (v1/kv_cache_interface.py:1189)."""
    hash_size, size, alignment = saving
    return (
        alignment is not None
        and start % hash_size == 0
        and cdiv(end, size) - 2 > (start - 1) // size
        and start + hash_size <= at
        and start < at < end
        and (at - start) % alignment == 0
    )


class StateTables(GroupTables):
    """Tables whose entries are null but for the running state, the one before it, and those that are kept."""

    keeps_all = False

    def __init__(self, cache: LayerCache, number: int, pool: GroupPool, rules: GroupRules, most: int) -> None:
        super().__init__(cache, number, pool, rules, most)
        self.fresh: set[tuple[int, Hashable]] = set()  # keys that entered in this step, which nobody may hit yet
        self._saving = Saving(rules.hash_size, self.size, cache.checkpoint)
        self._started: set[int] = set()
        self._retired: dict[int, int] = {}  # row -> places from the start that hold nothing any more
        self._saves: dict[int, tuple[int, int]] = {}  # row -> tokens of the state saved inside its chunk, and its place

    def dropped(self, row: int, computed: int) -> list[int]:
        """(:1608) What :1635 frees besides lies below these too, as nothing enters the table there again."""
        table = self.tables.get(row)
        if not table:
            return []
        stop = min(max(0, computed - 1) // self.size, len(table))
        return [place for place in range(stop - 1, self._retired.get(row, 0) - 1, -1) if table[place] != NULL]

    def drop(self, row: int, computed: int) -> None:
        """(:1608)"""
        table = self.tables.get(row)
        if not table:
            return
        places = self.dropped(row, computed)
        blocks = [table[place] for place in places]
        for place in places:
            table[place] = NULL
        self.pool.release(blocks)
        stop = min(max(0, computed - 1) // self.size, len(table))
        if stop > self._retired.get(row, 0):
            self._retired[row] = stop

    def needed(self, asked: Reach, hit: Sequence[int] = (), gone: Sequence[int] = (), *, whole: bool = False) -> int:
        """(:1692) More than there are, where the hit's state is computed in this very step."""
        if hit and self.pool.first_key(hit[-1]) in self.fresh:
            return self.pool.num_blocks + 2
        held = len(self.tables.get(asked.row, ()))
        copies = self._ends_inside(hit, asked.computed - asked.loaded) or asked.row in self.shared_tails
        needed = cdiv(asked.end, self.size) - len(hit) - held
        if copies:
            needed = max(needed, 0) + 1
        if needed > 0:
            needed = min(needed, 1 + copies + (self._saved(asked, gone) > 0))
        return needed + self._unused(hit)

    def _saved(self, asked: Reach, gone: Sequence[int] = ()) -> int:
        """Tokens after which the chunk saves its state on its way; 0 if it does not (:1662)."""
        at = (asked.end - 1) // self.rules.unit * self.rules.unit
        place = cdiv(asked.end, self.size) - 2
        table = self.tables.get(asked.row, ())
        is_free = place >= len(table) or place in gone or (place >= 0 and table[place] == NULL)
        saves = asked.end >= asked.prefill_end and saves_inside(self._saving, asked.computed, asked.end, at)
        return at if at > 0 and place >= 0 and is_free and saves else 0

    def reserve(self, asked: Reach) -> None:
        self._saves.pop(asked.row, None)
        if at := self._saved(asked):
            self._saves[asked.row] = at, cdiv(asked.end, self.size) - 2

    def extend(self, asked: Reach) -> None:
        """(:1795)"""
        row, table = asked.row, self.tables.setdefault(asked.row, [])
        needed, saves = cdiv(asked.end, self.size), row in self._saves
        tail = self.shared_tails.get(row)
        started = row in self._started
        self._started.add(row)
        if needed <= len(table) and tail is None and not saves:
            return
        table += [NULL] * (needed - 1 - saves - len(table))
        blocks = self.pool.take(max(0, needed - len(table)) + (tail is not None))
        if tail is not None:
            copy = blocks.pop(0)
            if started:
                self._keep_copy(row, copy)
            else:
                self.copy_tail(row, copy)
        table += blocks

    def _keep_copy(self, row: int, copy: int) -> None:
        """A request goes on in the block whose state it has let others find: they find a copy instead (:1870)."""
        _, source = self.shared_tails.pop(row)
        self.pool.move_keys(source, copy)
        self.pool.references[source] += 1
        self.copies += [source, copy]
        if (key := self.pool.first_key(copy)) is not None:
            self.fresh.add(key)

    def free(self, row: int) -> None:
        self._started.discard(row)
        for kept in (self._retired, self._saves):
            kept.pop(row, None)
        super().free(row)

    def enter(self, row: int, keys: BlockKeys, tokens: int, known: int, prompt: int, junction: int) -> None:
        """(:2000)"""
        before = self.entered.get(row, 0)
        size = self.size
        super().enter(row, keys, tokens, known, prompt, junction)
        after = max(before, min(tokens, known // self.rules.hash_size * self.rules.hash_size) // size)
        if size == self.rules.hash_size:
            self.enter_tail(row, keys, tokens, known, prompt, junction)
        for block in self.tables[row][before:after]:
            key = self.pool.first_key(block) if block != NULL else None
            if key is not None:
                self.fresh.add(key)

    def kept(self, first: int, stop: int, boundaries: Sequence[int]) -> Sequence[int]:
        """The states that end where a hit may end (:1549)."""
        retention, size = self.rules.retention, self.size
        if retention is None:
            return range(first, stop)
        kept: set[int] = set()
        segment = retention // size
        if retention and segment <= 1:
            return range(first, stop)
        if segment:
            kept = {place for place in range(first, stop) if (place + 1) % segment == 0}
        ends = [boundary // self.rules.unit * self.rules.unit // size - 1 for boundary in boundaries]
        return sorted(kept | {place for place in ends if first <= place < stop})

    def enter_tail(self, row: int, keys: BlockKeys, tokens: int, known: int, prompt: int, junction: int) -> None:
        """Let others find a state inside a chunk or a block (:2028)."""
        unit, size, table = self.rules.hash_size, self.size, self.tables[row]
        if row in self._saves:
            at, place = self._saves[row]
            is_kept = at % size == 0 and at // size - 1 in self.kept(at // size - 1, at // size, ())
            if at != (prompt - 1) // self.rules.unit * self.rules.unit and not is_kept and at != junction:
                self.pool.forget(table[place])
            elif self.pool.tokens_of.get(table[place]) != at:
                self._enter_state(table[place], keys[at // unit - 1], at, anew=True)
            return
        place = cdiv(tokens, size) - 1
        if tokens <= 0 or tokens != (prompt - 1) // unit * unit or place >= len(table) or table[place] == NULL:
            return
        if self.pool.tokens_of.get(table[place]) != tokens:
            self._enter_state(table[place], keys[tokens // unit - 1], tokens)
            if tokens % size:
                self.shared_tails[row] = place, table[place]
                self.entered[row] = place

    def _enter_state(self, block: int, key: Hashable, tokens: int, *, anew: bool = False) -> None:
        self.pool.enter(block, self.number, key, tokens, anew=anew)
        self.fresh.add((self.number, key))

    def look(self, keys: BlockKeys, groups: Sequence[int], most: int, unit: int) -> tuple[list[list[int]], int]:
        """(:1470)"""
        size, unit_keys = self.size, self.rules.hash_size
        step = unit if unit < size and size % unit == 0 else size
        for number in range(most // step, 0, -1):
            tokens = number * step
            blocks = self.pool.found(keys[tokens // unit_keys - 1], groups)
            if blocks is not None and (step < size or size == unit or tokens % unit == 0):
                return [[NULL] * ((tokens - 1) // size) + [block] for block in blocks], tokens
        return [[] for _ in groups], 0
