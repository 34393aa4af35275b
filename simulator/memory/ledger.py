"""KV memory as counts: plain, and with a prefix cache (`PrefixLedger`, the fast form of `PrefixCache`)."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final

from simulator.memory.block_keys import RequestKeys, Stretch
from simulator.memory.free_runs import NOBODY, BlockRun, CachedRuns, RequestBlocks
from simulator.request import Request

# Counts suffice as long as no block is shared and no device reads one.


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


# KV blocks with a prefix cache, in runs and counts: what `PrefixCache` decides, without ids.
#
# Which block of a memory holds what matters to a device alone. Scheduling depends on how many blocks a request
# finds, how many are free, and in which order content is forgotten. So the blocks that a request filled are one run
# as long as they are used and come free together, and blocks with content that no other request can have are not
# told apart, except those of a preempted request, which may come back for its own.

_NONE: Final[list[Stretch]] = []
_Held = tuple[BlockRun, int, int]  # a run, and the places of a sequence from and up to which it is found there


class PrefixLedger(CachedRuns):
    """Blocks of a prefix cache as runs. See `PrefixCache` for the rules, and `Cache` for the functions."""

    by_id = None

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks)
        self.block_size = block_size
        self.unknown_first = True  # False before vLLM 0.26: all freed blocks went to the end
        self._tables: dict[int, RequestBlocks] = {}
        self._asked, self._shared = NOBODY, 0  # the row of the request at hand, and its blocks that others may have
        self._stretches: list[Stretch] = []
        self._looked, self._looked_at = NOBODY, 0  # the last request looked up, and at which change
        self._most = self._reached = 0  # how far it was looked for, and found
        self._held: list[_Held] = []
        self.keys = RequestKeys(block_size)
        self.keys.used = self._used
        self.unfilled: Mapping[int, object] = {}  # texts of which more may be full than has entered; `fill` lets it
        self.fill: Callable[[int, int], None]

    # Looking

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """Cached leading blocks of the request's `num_tokens` tokens, and how many of these no request uses."""
        if request.content is None and not self._own:
            return 0, 0
        most = (num_tokens - self.keys.behind) // self.block_size
        found = unused = shared = 0
        last: BlockRun | None = None
        if request.content is not None:
            if request.row != self._asked:
                self._ask(request)
            if unfilled := self.unfilled:  # what is full of these texts enters before they are looked up
                for text, first, _ in self._stretches:
                    if text in unfilled and first < most:
                        self.fill(text, most)
                if request.row != self._asked:
                    self._ask(request)
            shared = most if most < self._shared else self._shared
            for last, start, found in self._holders(shared):
                if not last.references:
                    unused += found - start
        while self._own and shared <= found < most and (own := self._own_part(request.row, found, most)) is not None:
            last, stop = own
            if not last.references:
                unused += stop - found
            found = stop
        if last is not None and self.keys.drops_hit_block:
            return found - 1, unused - (not last.references)
        return found, unused

    def names(self, request: Request, blocks: int) -> list[Hashable]:
        """Names of a request's first blocks that others may have too, `blocks` at most: those that `tell` is given."""
        self._ask(request)
        return _names(self._stretches, 0, blocks)

    def _used(self) -> list[int]:
        """The last key of each run of a text."""
        others = [run for same in self._others.values() for run in same]
        return [run.text + run.start + run.size - 1 for run in (*self._serving, *others)]

    def _ask(self, request: Request) -> None:
        """Have the texts of a request at hand, which is looked up and admitted."""
        keys = self.keys.of(request)
        self._asked, self._shared, self._stretches = request.row, keys.num_shared, keys.stretches()

    def _holders(self, most: int) -> list[_Held]:
        """The runs that hold the leading blocks of the request at hand, up to `most` or the first that is not cached.

        The last answer is kept until the cache changes.
        """
        row, changes = self._asked, self._changes
        if row == self._looked and changes == self._looked_at and (most == self._most or most == self._reached):
            return self._held
        held: list[_Held] = []
        place = 0
        for text, start, stop in self._stretches:
            if place < start or start >= most:
                break
            if stop > most:
                stop = most
            run = self._serving.behind(text, place)
            while run is not None and run.start <= place < stop:
                end = run.start + run.size
                if end > stop:
                    end = stop
                held.append((run, place, end))
                place = end
                run = run.following
        self._looked, self._looked_at = row, changes
        self._most, self._reached, self._held = most, place, held
        return held

    def _own_part(self, row: int, place: int, most: int) -> tuple[BlockRun, int] | None:
        """The first run to have entered that holds this place of a request's own blocks, and up to where it is that."""
        for run in self._own.get(row, ()):
            stop = run.start + run.size
            if run.start <= place < stop:
                return run, (stop if stop < most else most)
            if place < run.start < most:
                most = run.start
        return None

    def freed_with(self, held: Mapping[int, int]) -> int:
        """Blocks that only these rows use, each of which holds so many."""
        freed = 0
        stops: dict[BlockRun, list[int]] = {}
        for row, blocks in held.items():
            table = self._tables.get(row)
            if table is None:
                freed += blocks
            else:
                freed += blocks - table.held
                for run, stop in table.uses():
                    if run.references == 1:
                        freed += run.size
                    else:
                        stops.setdefault(run, []).append(stop)
        for run, ends in stops.items():
            freed += run.left_by(ends)
        return freed

    # Taking

    def take_hits(self, request: Request, blocks: int) -> None:
        """Begin the request's table with its first `blocks` blocks, which are cached."""
        table = self._begin(request)
        table.held = table.entered = blocks
        if not blocks:
            return
        start = 0
        if table.shared:
            shared = blocks if blocks < table.shared else table.shared
            for run, first, start in self._holders(shared):
                if run.references and run.start == first:
                    run.references += 1
                    table.runs.append(run)
                    if start < run.start + run.size:
                        run.cut_at(start, 1)
                else:
                    self._use(table, run, first, start)
            self._changes += 1
        while start < blocks:
            own = self._own_part(request.row, start, blocks)
            assert own is not None
            self._use(table, own[0], start, own[1])
            start = own[1]

    def table(self, request: Request) -> RequestBlocks:
        """What has entered of a request that has blocks."""
        return self._tables.get(request.row) or self._begin(request)

    def _begin(self, request: Request) -> RequestBlocks:
        """A table of no blocks; the request is at hand."""
        if request.content is None:
            table = RequestBlocks(0, _NONE)
        else:
            if request.row != self._asked:
                self._ask(request)
            table = RequestBlocks(self._shared, self._stretches)
        self._tables[request.row] = table
        return table

    def _use(self, table: RequestBlocks, run: BlockRun, start: int, stop: int) -> None:
        """Let a table go on with these places of a run, which is split where what it holds more is not in use."""
        self._changes += 1
        if run.start < start:
            run = self._split(run, start)
        if not run.references:
            if stop < run.start + run.size:
                self._split(run, stop)
            self._free.remove(run)
            self.num_free -= run.size
        elif stop < run.start + run.size:
            run.cut_at(stop, 1)
        run.references += 1
        table.runs.append(run)

    def allocate(self, row: int, num_blocks: int) -> None:
        """Give the request `num_blocks` more blocks, evicting what they held."""
        if num_blocks > self.num_free:
            raise OutOfBlocksError(f"row {row} asks for {num_blocks} blocks, {self.num_free} are free")
        self._take(num_blocks)

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        """`num_blocks` more: whose they are does not matter."""
        if num_blocks > self.num_free:
            raise OutOfBlocksError(f"decoding asks for {num_blocks} blocks, {self.num_free} are free")
        self._take(num_blocks)

    def enter(self, request: Request, full_blocks: int) -> None:
        """Enter the request's first `full_blocks` blocks, full at the latest after this step, into the cache."""
        table = self._tables.get(request.row) or self._begin(request)
        if full_blocks <= table.entered:
            return
        stop = full_blocks if full_blocks < table.shared else table.shared
        if stop > table.held:
            if self.tell is not None:
                self.tell(_names(table.stretches, table.held, stop), 1)
            for text, _, end in table.stretches:
                if table.held < end:
                    if text in self.unfilled:
                        self.fill(text, stop)
                    self._enter_text(table, request.row, text, stop if stop < end else end)
                    if stop <= end:
                        break
            self._changes += 1
        table.entered = full_blocks

    def _enter_text(self, table: RequestBlocks, row: int, text: int, stop: int) -> None:
        """Enter blocks of a text behind the runs of a table, up to a place; those that others serve are runs apart."""
        place = table.held
        if table.runs:
            run = table.runs[-1]
            if run.following is None and run.serves and run.references == 1 and run.text == text:
                run.size += stop - place  # nobody has what is behind: nearly always so with an answer
                table.held = stop
                return
        other = self._serving.behind(text, place)
        if other is None or other.start >= stop:
            self._append(table, row, text, stop, serves=True)
            return
        while place < stop:
            end = stop
            serves = other is None or other.start > place
            if other is not None:
                if not serves and other.start + other.size < stop:
                    end = other.start + other.size
                elif serves and other.start < stop:
                    end = other.start
            self._append(table, row, text, end, serves=serves)
            place = end
            if not serves and other is not None:
                other = other.following

    def _append(self, table: RequestBlocks, row: int, text: int, stop: int, *, serves: bool) -> None:
        """Add a run up to this place to those of a table, or let its last grow, if that is its own and the latest."""
        place = table.held
        table.held = stop
        if table.runs:
            run = table.runs[-1]
            grows = run.text == text and run.references == 1 and run.start + run.size == place and run.serves == serves
            if grows and (serves or self._others[text][-1] is run):
                run.size += stop - place
                return
        run = BlockRun(row, place, stop - place, text)
        run.references = 1
        table.runs.append(run)
        if serves:
            self._serving.add(run)
        else:
            self._others.setdefault(text, []).append(run)

    def settle(self, rows: Iterable[int]) -> None:
        """Do nothing: full blocks entered when they were scheduled."""

    # Leaving

    def free(self, row: int, num_blocks: int) -> None:
        """Free all `num_blocks` blocks of the request; cached ones stay until they are allocated anew."""
        self._leave(row, num_blocks, comes_back=False)

    def lose(self, row: int, num_blocks: int) -> None:
        """Free the blocks of a preempted request, which finds its own again if it comes back in time."""
        self._leave(row, num_blocks, comes_back=True)

    def abort(self, row: int, num_blocks: int, num_computed_tokens: int) -> None:
        """Free the blocks of an aborted request: the full ones entered when they were scheduled."""
        self._leave(row, num_blocks, comes_back=False)

    def _leave(self, row: int, num_blocks: int, *, comes_back: bool) -> None:
        """Put the blocks of a request into the queue, the last one first; those that hold nothing go to its front."""
        table = self._tables.pop(row, None) or RequestBlocks(0, _NONE)
        unknown, own = num_blocks - table.entered, table.entered - table.held
        if unknown < 0:
            raise ValueError(f"row {row} holds {table.entered} blocks, not {num_blocks}")
        self.num_free += unknown + own
        if self.unknown_first:
            self._empty += unknown
        else:
            self._append_nameless(unknown)
        if own and comes_back:
            run = BlockRun(row, table.held, own)
            self._own.setdefault(row, []).append(run)
            self._free.append(run)
        elif own:
            self._append_nameless(own)
        self._changes += 1
        if not table.runs:
            return
        stop = table.held
        for run in reversed(table.parts()):
            run.references -= 1
            end = run.start + run.size
            if stop < end:
                run.cut_at(stop, -1)
            stop = run.start
            if not run.references:
                run.rest = None
                self._add_free(run)
            elif run.cut is not None and (unused := run.unused_from()) < end:
                rest = run.rest
                half = self._split(run, unused)
                run.rest, half.rest = rest, None
                self._add_free(half)

    def end(self, row: int) -> None:
        """Forget the keys of a request that has ended."""
        self.keys.end(row)
        if row == self._asked:
            self._asked = NOBODY
        if self._own:
            self._own.pop(row, None)

    def check(self) -> None:
        """Raise AssertionError unless references, free queue and cache agree."""
        self._check_runs([use for table in self._tables.values() for use in table.uses()])


def _names(stretches: Sequence[Stretch], start: int, stop: int) -> list[Hashable]:
    """Names of the blocks from `start` to before `stop`."""
    return [text + at for text, a, b in stretches for at in range(max(a, start), min(b, stop))]
