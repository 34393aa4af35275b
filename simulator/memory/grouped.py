"""KV memory whose blocks several groups share: one hit length for all, and blocks freed as windows pass them.

vLLM's `KVCacheManager.allocate_slots` and its coordinators (vllm/v1/core/kv_cache_manager.py and
kv_cache_coordinator.py of 0.33). A policy asks with `hit`, `needed` and a `Trial`, which change nothing; the engine
acts with `drop`, `allocate` and `free`.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from simulator.hardware.kv_plan import KVPlan, group_blocks
from simulator.memory.block_keys import RequestKeys
from simulator.memory.group_tables import (
    NULL,
    ChunkedTables,
    GroupPool,
    GroupRules,
    GroupTables,
    PlainPool,
    Reach,
    StateTables,
    WindowTables,
)
from simulator.plan import StateRules
from simulator.request import Request


class Hit(NamedTuple):
    """What is cached of a request: so many tokens, and the blocks of each group that hold them.

    `junction` is the longest prefix that some group has, where that is longer than the hit; else 0.
    """

    tokens: int
    junction: int
    blocks: Sequence[Sequence[int]]


def engine_block_size(plan: KVPlan) -> int:
    """Tokens of a block where all tokens of a request count: a full layer's, or else the longest context."""
    sizes = [group.cache.block_size for group in plan.groups if group.cache.kind == "full"]
    return max(sizes, default=plan.settings.max_model_len)


class GroupedBlocks:
    """Blocks of several groups. `retention` is in tokens: see `GroupRules`."""

    by_id = None
    keeps_order: ClassVar[bool] = False
    """Whether it matters which free block is taken next, even where no prefix is cached."""

    def __init__(self, plan: KVPlan, num_blocks: int, retention: int | None = 0) -> None:
        settings, groups = plan.settings, plan.groups
        caches = settings.enable_prefix_caching
        hash_size = plan.hash_block_size
        kinds = [group.cache.kind for group in groups]
        has_states = caches and "mamba" in kinds
        self.has_tails = (
            len(groups) > 1
            and has_states
            and any(g.cache.kind == "mamba" and g.cache.block_size > hash_size for g in groups)
            and all(g.cache.kind in ("full", "mamba") or g.cache.block_size == hash_size for g in groups)
        )
        self.unit = hash_size if self.has_tails else plan.scheduler_block_size
        self.num_blocks = num_blocks
        self.pool = (GroupPool if caches or self.keeps_order else PlainPool)(num_blocks, len(groups))
        self.retention = retention
        rules = GroupRules(hash_size, self.unit, retention)
        self.tables: list[GroupTables] = []
        for number, group in enumerate(groups):
            cls = {"window": WindowTables, "chunked": ChunkedTables}.get(group.cache.kind, GroupTables)
            if group.cache.kind == "mamba" and caches:
                cls = StateTables
            longest, in_flight = settings.max_model_len, settings.in_flight_tokens
            bounded = group.cache.kind in ("window", "chunked")
            most = group_blocks(group, longest, in_flight, settings) if bounded else 0
            self.tables.append(cls(group.cache, number, self.pool, rules, most))
        self._alike: list[list[int]] = []  # groups that are looked up together, those that keep all tokens first
        for number, group in enumerate(groups):
            for other in self._alike:
                if groups[other[0]].cache == group.cache:
                    other.append(number)
                    break
            else:
                self._alike.append([number])
        self._alike.sort(key=lambda numbers: not self.tables[numbers[0]].keeps_all)
        self._states = [table for table in self.tables if isinstance(table, StateTables)]
        self.keys = RequestKeys(hash_size) if caches else None
        self.junctions: dict[int, int] = {}
        self.quiet: dict[int, int] = {}  # row -> until so many computed tokens, decoding changes no table
        self.blocks_at = plan.blocks_at
        alignments = [table.cache.checkpoint for table in self._states]
        self.states: StateRules | None = None
        if alignments:
            least = None if None in alignments else alignments[0]
            self.states = StateRules(plan.block_size, self.unit, hash_size, self.has_tails, least)
        self._scheduled_size = plan.scheduler_block_size

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    # Looking

    def hit(self, request: Request, num_tokens: int) -> Hit:
        """What is cached of a request's first `num_tokens` tokens, of which one is left to compute."""
        found: list[Sequence[int]] = [()] * len(self.tables)
        if self.keys is None:
            return Hit(0, 0, found)
        keys, tables = self.keys.of(request), self.tables
        lengths = [0] * len(tables)
        length, longest = num_tokens - self.keys.behind, 0
        looked: set[int] = set()
        while True:
            now = length
            for groups in self._alike:
                first = groups[0]
                if tables[first].keeps_all and first in looked:
                    now = min(now, lengths[first])
                    continue
                blocks, now = tables[first].look(keys, groups, now, self.unit)
                looked.add(first)
                for group, own in zip(groups, blocks, strict=True):
                    found[group], lengths[group] = own, now
                longest = max(longest, now)
            if now >= length:
                break
            length = now
            if len(self._alike) == 2 and tables[self._alike[0][0]].keeps_all:
                break
        for number, table in enumerate(tables):
            if table.keeps_all:
                found[number] = found[number][: -(-length // table.size)]
        if len(tables) == 1:
            return Hit(now, 0, found)
        return Hit(length, longest if longest > length else 0, found)

    def needed(self, asked: Reach, hit: Hit | None = None, *, whole: bool = False) -> int:
        """Free blocks that a chunk takes; `whole`: the test whether all of a request fits."""
        tables = self.tables
        if hit is None:
            return sum([table.needed(asked, whole=whole) for table in tables])
        return sum([t.needed(asked, own, whole=whole) for t, own in zip(tables, hit.blocks, strict=True)])

    def asked(self, row: int, computed: int, end: int, prefill_end: int, loaded: int = 0) -> Reach:
        """A chunk, as the groups are asked for it."""
        return Reach(row, computed, end, prefill_end if self.retention == 0 else 0, loaded)

    def quiet_steps(self, computed: int, in_flight: int) -> int:
        """Decode steps of a request from now on up to the next, but not this one, that may change its tables."""
        least = 1 << 30
        enters = self.keys is not None  # only then does it matter when a block is full
        for table in self.tables:
            offsets = [computed]
            if enters:
                offsets += [computed + 1, computed - in_flight, computed - in_flight - 1]
            if table.cache.kind == "window":
                offsets.append(computed - in_flight - table.cache.window + 1)
            elif table.cache.kind == "chunked":
                offsets.append(computed - in_flight)
            for offset in offsets:
                least = min(least, -(offset + 1) % table.size + 1)
            if table.cache.chunk:
                least = min(least, -(computed - in_flight + 1) % table.cache.chunk + 1)
            if enters:
                least = min(least, -(computed + 2) % self.unit + 1)
        return least

    # Acting

    def refusal(self, tokens: int) -> str | None:
        """The reason why a request of so many tokens could never be served."""
        needed = self.blocks_at(tokens)
        if needed <= self.num_blocks:
            return None
        return f"{tokens} tokens may need {needed} KV blocks of all groups; there are {self.num_blocks}"

    def start_plan(self) -> None:
        """A step is planned: what entered in the step before can be hit."""
        for table in self._states:
            table.fresh.clear()

    def end_plan(self) -> None:
        """All of a step's parts are applied: blocks are free that were held for copies."""
        held = [block for table in self.tables for block in table.copies]
        if held:
            for table in self.tables:
                table.copies = []
            self.pool.release(held)

    def drop(self, row: int, processed: int) -> None:
        """Free what a request no longer needs, of whose tokens so many have been computed for sure."""
        for table in self.tables:
            table.drop(row, processed)

    def admit(self, asked: Reach, hit: Hit) -> None:
        """Begin the tables of a request with what it found, and blocks for what is loaded; `take` follows.

        All groups hold what they found before one takes blocks.
        """
        self.junctions[asked.row] = hit.junction
        for table in self.tables:
            table.reserve(asked)
        if self.keys is not None or asked.loaded:
            for table, own in zip(self.tables, hit.blocks, strict=True):
                table.begin(asked.row, own, hit.tokens, asked.loaded)
        if asked.loaded:
            for table in self.tables:
                table.load(asked.row, asked.computed)

    def take(self, request: Request, asked: Reach, known: int, *, admitted: bool = False) -> None:
        """Take the blocks of a chunk, and let others find what of them is full: `known` tokens have a content."""
        self.extend(asked, admitted=admitted)
        self.enter(request, min(asked.end, known), known)

    def extend(self, asked: Reach, *, admitted: bool = False) -> None:
        """Take the blocks of a chunk."""
        if not admitted:
            for table in self.tables:
                table.reserve(asked)
        for table in self.tables:
            table.extend(asked)

    def enter(self, request: Request, tokens: int, known: int) -> None:
        """Let others find what is full of a request's first `tokens` tokens, of which `known` have a content."""
        if self.keys is None:
            return
        if len(self.tables) > 1 and not self.has_tails:
            tokens -= tokens % self._scheduled_size
        keys, junction = self.keys.of(request), self.junctions.get(request.row, 0)
        for table in self.tables:
            table.enter(request.row, keys, tokens, known, request.input_tokens, junction)

    def allocate(self, row: int, num_blocks: int) -> None:
        """Blocks are taken by group: see `take`."""
        raise NotImplementedError

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        """Blocks are taken by group: see `take`."""
        raise NotImplementedError

    def free(self, row: int, num_blocks: int) -> None:
        """Free all blocks of a request, group after group."""
        for table in self.tables:
            table.free(row)
        self.junctions.pop(row, None)
        self.quiet.pop(row, None)

    def end(self, row: int) -> None:
        """Forget the keys of a request that has ended."""
        if self.keys is not None:
            self.keys.end(row)

    def check(self) -> None:
        """Raise AssertionError unless pool and tables agree."""
        self.pool.check(blocks for table in self.tables for blocks in table.tables.values())


class Trial:
    """Blocks as they would be after requests had taken and left some. It changes nothing."""

    def __init__(self, blocks: GroupedBlocks) -> None:
        self._blocks = blocks
        self._references = blocks.pool.references
        self._fewer: dict[int, int] = {}  # block -> requests fewer that use it
        self._gone: dict[int, list[list[int]]] = {}  # row -> dropped places of each group
        self._own: dict[int, int] = {}  # row -> blocks taken, which it alone uses
        self.num_free = blocks.num_free

    def take(self, asked: Reach, processed: int) -> bool:
        """Take the blocks of a chunk, if there are so many when the request has dropped what it no longer needs."""
        row = asked.row
        tables = self._blocks.tables
        if row not in self._gone:
            gone = self._gone[row] = [table.dropped(row, processed) for table in tables]
            for table, places in zip(tables, gone, strict=True):
                self._leave([table.tables[row][place] for place in places])
        needed = sum([t.needed(asked, (), gone) for t, gone in zip(tables, self._gone[row], strict=True)])
        if needed > self.num_free:
            return False
        self.num_free -= needed
        self._own[row] = needed
        for table in tables:
            if row in table.shared_tails:
                self._own[row] -= 1  # the copy is held until the end of the plan, and so is its source
                self._fewer[table.shared_tails[row][1]] = self._fewer.get(table.shared_tails[row][1], 0) - 1
        return True

    def leave(self, row: int) -> None:
        """Free all blocks of a request."""
        tables = self._blocks.tables
        gone = self._gone.pop(row, [[] for _ in tables])
        for table, places in zip(tables, gone, strict=True):
            held = table.tables.get(row, ())
            self._leave([block for place, block in enumerate(held) if block != NULL and place not in places])
        self.num_free += self._own.pop(row, 0)

    def _leave(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            fewer = self._fewer[block] = self._fewer.get(block, 0) + 1
            self.num_free += self._references[block] == fewer
