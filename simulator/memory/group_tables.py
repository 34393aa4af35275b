"""Blocks that several KV groups share, and the block tables of one group: of keys and values, and of states."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from simulator.division import cdiv
from simulator.hardware.kv_groups import LayerCache
from simulator.memory.block_keys import BlockKeys
from simulator.memory.ledger import OutOfBlocksError

# Blocks that several KV groups share: vLLM's `BlockPool`, as of 0.33, with keys that name a group.
#
# A block belongs to one group at a time, and may be found under several keys: of its whole content, and of a
# beginning of it. Allocation takes from the front of the free queue and forgets the keys. Blocks without a key
# return to the front.

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


# Block tables of one KV group: of keys and values, and of states.
#
# What a request needs, what it no longer needs, and what others may find of it. The rules are those of
# vllm/v1/core/single_type_kv_cache_manager.py of 0.33, whose line numbers are given. A table has an entry for each
# block of the sequence, which is `NULL` where nothing is kept.


class Reach(NamedTuple):
    """How far a request is to compute next, and how far its prompt goes.

    `computed` tokens lie before the chunk, which ends at `end`: hits included, and the `loaded` tokens behind them that
    a connector has. `prefill_end` is where its prefill ends, or 0 where a state is kept of every chunk.
    """

    row: int
    computed: int
    end: int
    prefill_end: int = 0
    loaded: int = 0


class GroupRules(NamedTuple):
    """What all groups share: tokens of a hash block and of the unit of hits, and what is retained of prompts.

    `retention` is vLLM's `prefix_cache_retention_interval`: None keeps what any request may find, 0 what the same
    prompt or a longer one may, and more than that something at each multiple.
    """

    hash_size: int
    unit: int
    retention: int | None = 0


class GroupTables:
    """Tables of a group whose layers keep all tokens."""

    keeps_all = True

    def __init__(self, cache: LayerCache, number: int, pool: GroupPool, rules: GroupRules, most: int) -> None:
        self.cache = cache
        self.size = cache.block_size
        self.number = number
        self.pool = pool
        self.rules = rules
        self.most = most  # blocks that a request may hold at once; 0: no bound
        self.tables: dict[int, list[int]] = {}
        self.entered: dict[int, int] = {}  # leading blocks that have entered the cache, or never will
        self.shared_tails: dict[int, tuple[int, int]] = {}  # row -> place and block that is copied before it is written
        self.copies: list[int] = []  # blocks held until the end of the plan: sources and copies

    # Taking

    def passed(self, computed: int) -> int:
        """Leading tokens that the next one no longer needs."""
        return 0

    def dropped(self, row: int, computed: int) -> list[int]:
        """Places whose blocks are not needed after so many tokens, from the last to the first (:655)."""
        table = self.tables.get(row)
        places: list[int] = []
        if table:
            for place in range(min(self.passed(computed) // self.size, len(table)) - 1, -1, -1):
                if table[place] == NULL:
                    break
                places.append(place)
        return places

    def drop(self, row: int, computed: int) -> None:
        """Free the blocks that are not needed after so many tokens."""
        if places := self.dropped(row, computed):
            table = self.tables[row]
            blocks = [table[place] for place in places]
            for place in places:
                table[place] = NULL
            self.pool.release(blocks)

    def needed(self, asked: Reach, hit: Sequence[int] = (), gone: Sequence[int] = (), *, whole: bool = False) -> int:
        """Free blocks that the chunk takes, those of a `hit` that no request uses included (:180).

        `whole`: the question is whether all of the request would fit.
        """
        needed = cdiv(asked.end, self.size)
        if whole and self.most:
            needed = min(needed, self.most)
        held = len(self.tables.get(asked.row, ()))
        if held:
            return max(0, needed - held) + (asked.row in self.shared_tails)
        skipped = self.passed(asked.computed) // self.size
        unused = self._unused(hit[skipped:])
        copies = self._ends_inside(hit, asked.computed - asked.loaded)
        return max(0, needed - max(skipped, len(hit))) + unused + copies

    def _unused(self, hit: Sequence[int]) -> int:
        return sum([block != NULL and not self.pool.references[block] for block in hit])

    def _ends_inside(self, hit: Sequence[int], tokens: int) -> bool:
        """Return whether a hit ends inside a block, which is then copied."""
        return len(hit) > 0 and tokens % self.size != 0

    def reserve(self, asked: Reach) -> None:
        """Note what the chunk keeps on its way; its blocks are there."""

    def begin(self, row: int, hit: Sequence[int], tokens: int, loaded: int = 0) -> None:
        """Begin the table of a request with what it found, behind which some tokens are `loaded` (:255)."""
        skipped = self.passed(tokens + loaded) // self.size
        used = hit[skipped:]
        self.pool.use(used)
        self.tables[row] = [NULL] * skipped + list(used)
        self.entered[row] = len(self.tables[row])
        if self._ends_inside(used, tokens):
            self.entered[row] = tokens // self.size
            self.shared_tails[row] = tokens // self.size, used[-1]

    def load(self, row: int, tokens: int) -> None:
        """Take the blocks that hold what is loaded of a request's first `tokens` tokens (:305)."""
        if self.passed(tokens) < tokens:
            table = self.tables[row]
            table += self.pool.take(max(0, cdiv(tokens, self.size) - len(table)))

    def extend(self, asked: Reach) -> None:
        """Take the blocks of the chunk (:373)."""
        table = self.tables.setdefault(asked.row, [])
        if asked.row in self.shared_tails:
            self.copy_tail(asked.row, self.pool.take(1)[0])
        table += self.pool.take(max(0, cdiv(asked.end, self.size) - len(table)))

    def copy_tail(self, row: int, copy: int) -> None:
        """Let a request go on in a copy of the block that its hit ends in."""
        place, source = self.shared_tails.pop(row)
        self.tables[row][place] = copy
        self.pool.references[copy] += 1
        self.copies += [source, copy]

    def free(self, row: int) -> None:
        """Free the blocks of a request, from its tail (:571)."""
        self.entered.pop(row, None)
        self.shared_tails.pop(row, None)
        self.pool.release(reversed(self.tables.pop(row, [])))

    # Entering

    def enter(self, row: int, keys: BlockKeys, tokens: int, known: int, prompt: int, junction: int) -> None:
        """Let others find what the request has of its first `tokens` tokens, of which `known` have keys (:477)."""
        size, step = self.size, self.size // self.rules.hash_size
        first = self.entered.get(row, 0)
        full = min(tokens, known // self.rules.hash_size * self.rules.hash_size) // size
        if first < full:
            table = self.tables[row]
            for place in self.kept(first, full, [prompt - 1, junction] if junction else [prompt - 1]):
                if table[place] != NULL:
                    self.pool.enter(table[place], self.number, keys[(place + 1) * step - 1], (place + 1) * size)
            self.entered[row] = full
        if step > 1:
            self.enter_tail(row, keys, tokens, known, prompt, junction)

    def kept(self, first: int, stop: int, boundaries: Sequence[int]) -> Sequence[int]:
        """Of the blocks from `first` to before `stop`, those that may serve a hit."""
        return range(first, stop)

    def enter_tail(self, row: int, keys: BlockKeys, tokens: int, known: int, prompt: int, junction: int) -> None:
        """Let others find the prompt's end inside a block (:859)."""
        unit = self.rules.hash_size
        end = min((prompt - 1) // unit, known // unit) * unit
        table = self.tables[row]
        if 0 < end <= tokens and end % self.size and end // self.size < len(table):
            block = table[end // self.size]
            if block != NULL:
                self.pool.enter(block, self.number, keys[end // unit - 1], end)

    # Looking

    def look(self, keys: BlockKeys, groups: Sequence[int], most: int, unit: int) -> tuple[list[list[int]], int]:
        """Blocks, for each of these alike groups, of the longest prefix of `most` tokens, and its tokens (:757)."""
        size, unit_keys = self.size, self.rules.hash_size
        found: list[list[int]] = []
        for place in range(most // size):
            blocks = self.pool.found(keys[(place + 1) * size // unit_keys - 1], groups)
            if blocks is None:
                break
            found.append(blocks)
        tokens = len(found) * size
        if unit < size and size % unit == 0:
            first = tokens // unit
            for fine in range(min(first + size // unit - 1, most // unit) - 1, first - 1, -1):
                blocks = self.pool.found(keys[(fine + 1) * unit // unit_keys - 1], groups)
                if blocks is not None:
                    found.append(blocks)
                    tokens = (fine + 1) * unit
                    break
        tokens -= tokens % unit
        return by_group(found[: cdiv(tokens, size)], groups), tokens


def by_group(places: Sequence[Sequence[int]], groups: Sequence[int]) -> list[list[int]]:
    """Blocks of each group, in order of their places."""
    return [list(blocks) for blocks in zip(*places, strict=True)] or [[] for _ in groups]


def window_tails(
    cache: LayerCache, unit: int, retention: int | None, places: range, boundaries: Sequence[int], end_place: int = 0
) -> Sequence[int]:
    """Of these places, those in a window that ends where a hit may end: at multiples of `unit` tokens (:1067).

    `end_place`: the end of the sequence, where one may end too; 0 where it is not known.
    """
    first, stop, size = places.start, places.stop, cache.block_size
    if not unit or unit % size:
        return places
    needed = cdiv(cache.window - 1, size)
    kept: set[int] = set()
    segment = (unit if retention is None else retention) // size
    if segment:
        if needed >= segment:
            return places
        kept = {place for place in places if place % segment >= segment - needed}
        if tail := end_place % segment:
            kept |= set(range(max(first, end_place - min(tail, needed)), min(stop, end_place)))
    if retention is not None:
        for boundary in boundaries:
            end = boundary // unit * unit // size
            kept |= set(range(max(first, end - needed), min(stop, end)))
    return sorted(kept)


class WindowTables(GroupTables):
    """Tables of a group whose layers see a window."""

    keeps_all = False

    def passed(self, computed: int) -> int:
        """(:1148)"""
        return max(0, computed - self.cache.window + 1)

    def kept(self, first: int, stop: int, boundaries: Sequence[int]) -> Sequence[int]:
        """The tails of windows that end where a hit may end."""
        return window_tails(self.cache, self.rules.unit, self.rules.retention, range(first, stop), boundaries)

    def enter_tail(self, row: int, keys: BlockKeys, tokens: int, known: int, prompt: int, junction: int) -> None:
        """Nothing: a window is found by whole blocks."""

    def look(self, keys: BlockKeys, groups: Sequence[int], most: int, unit: int) -> tuple[list[list[int]], int]:
        """(:969)"""
        size, step = self.size, self.size // self.rules.hash_size
        needed = cdiv(self.cache.window - 1, size)
        found: dict[int, list[int]] = {}
        run = stop = 0
        for place in range(most // size - 1, -1, -1):
            blocks = self.pool.found(keys[(place + 1) * step - 1], groups)
            if blocks is None:
                run = 0
                continue
            if run == 0 and size != unit and (place + 1) * size % unit:
                continue
            found[place] = blocks
            run += 1
            if run >= needed:
                stop = place + run
                break
        else:
            stop = run
            while size != unit and stop * size % unit:
                stop -= 1
        null = [NULL] * len(groups)
        return by_group([found.get(place, null) for place in range(stop)], groups), stop * size


class ChunkedTables(GroupTables):
    """Tables of a group with chunked local attention."""

    keeps_all = False

    def passed(self, computed: int) -> int:
        """(:1381)"""
        return computed // self.cache.chunk * self.cache.chunk

    def enter_tail(self, row: int, keys: BlockKeys, tokens: int, known: int, prompt: int, junction: int) -> None:
        """Nothing: a chunk is found by whole blocks."""

    def look(self, keys: BlockKeys, groups: Sequence[int], most: int, unit: int) -> tuple[list[list[int]], int]:
        """(:1282)"""
        size, step = self.size, self.size // self.rules.hash_size
        rows = [[NULL] * len(groups) for _ in range(self.passed(most) // size)]
        for place in range(len(rows), most // size):
            blocks = self.pool.found(keys[(place + 1) * step - 1], groups)
            if blocks is None:
                break
            rows.append(blocks)
        return by_group(rows, groups), len(rows) * size


# Block tables of one KV group with states, kept where blocks end for other requests to go on from: vLLM's align
# mode.
#
# The rules are those of `MambaManager` in vllm/v1/core/single_type_kv_cache_manager.py of 0.33.


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
