"""KV blocks with a prefix cache, in runs and counts: what `PrefixCache` decides, without ids.

Which block of a memory holds what matters to a device alone. Scheduling depends on how many blocks a request finds, how
many are free, and in which order content is forgotten. So the blocks that a request filled are one run as long as they
are used and come free together, and blocks with content that no other request can have are not told apart, except
those of a preempted request, which may come back for its own.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import repeat

from simulator.memory.free_runs import BlockRun, FreeRuns
from simulator.memory.ledger import OutOfBlocksError
from simulator.memory.request_keys import RequestKeys
from simulator.request import Request
from simulator.request_state import RequestState


def _nothing(keys: Iterable[Hashable]) -> None:
    """All that is full has entered."""


_Held = tuple[BlockRun, int, int]  # a run, and the places of a sequence from and up to which it is found there
_NOBODY = -1  # the row of runs that no request will look for


class RequestBlocks:
    """The leading blocks of one request that have entered the cache: `entered`, of which `runs` hold the first `held`.

    A run counts from its start to that of the next. Behind them come blocks that are the request's own.
    """

    __slots__ = ("entered", "held", "runs")

    def __init__(self) -> None:
        self.runs: list[BlockRun] = []
        self.held = 0
        self.entered = 0

    def parts(self) -> list[BlockRun]:
        """The runs, with what was split off them since: a list that is not to be changed."""
        for run in self.runs:
            if run.rest is not None:
                break
        else:
            return self.runs
        parts = []
        place = 0
        stops = [run.start for run in self.runs[1:]]
        for run, stop in zip(self.runs, [*stops, self.held], strict=False):
            part: BlockRun | None = run
            while part is not None and place < stop:
                parts.append(part)
                place = part.start + part.size
                part = part.rest
        return parts


class PrefixLedger:
    """Blocks of a prefix cache as runs. See `PrefixCache` for the rules, and `Cache` for the functions."""

    by_id = None

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.unknown_first = True  # False before vLLM 0.26: all freed blocks went to the end
        self.num_free = num_blocks
        self._empty = num_blocks  # free blocks in front of the queue that hold nothing
        self._free = FreeRuns()
        self._tables: dict[int, RequestBlocks] = {}
        self._serving: dict[Hashable, BlockRun] = {}  # key -> the run with the first block of it to have entered
        self._others: defaultdict[Hashable, list[BlockRun]] = defaultdict(list)  # the same of later ones, in order
        self._own: dict[int, list[BlockRun]] = {}  # row of a request that was preempted -> runs of its own
        self._changes = 0  # of what is cached, and where
        self._looked = (_NOBODY, 0)  # the last request looked up, at which change; how far, and what was found
        self._most = self._reached = 0
        self._held: list[_Held] = []
        self.keys = RequestKeys(block_size)
        # Requests of which more is full than has entered, by their conversation or the key of their next block; `fill`
        # lets it enter.
        self.unfilled: dict[Hashable, list[RequestState]] = {}
        self.fill: Callable[[Iterable[Hashable]], None] = _nothing

    # Looking

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        """Cached leading blocks of the request's `num_tokens` tokens, and how many of these no request uses."""
        most = (num_tokens - self.keys.behind) // self.block_size
        known = self.keys.of(request).first(most)
        if self.unfilled:
            self._fill(request.row, known[:most])
        found = unused = 0
        shared = most if most < len(known) else len(known)
        for holder, start, stop in self._holders(request.row, known, shared):
            found = stop
            if not holder.references:
                unused += stop - start
        while self._own and shared <= found < most:
            run = self._own_run(request.row, found)
            if run is None:
                break
            if not run.references:
                unused += 1
            found += 1
        if found and self.keys.drops_hit_block:
            last = self._server(request.row, known, found - 1)
            return found - 1, unused - (last is not None and not last.references)
        return found, unused

    def entered(self, row: int) -> int:
        """Leading blocks of a request that have entered."""
        table = self._tables.get(row)
        return 0 if table is None else table.entered

    def _fill(self, row: int, keys: list[Hashable]) -> None:
        """Let blocks enter that are full, before these of a request are looked up or enter."""
        conversation = self.keys.conversation(row)
        if conversation is not None:
            if conversation in self.unfilled:
                self.fill([conversation])
        elif not self.unfilled.keys().isdisjoint(keys):
            self.fill([key for key in keys if key in self.unfilled])

    def _server(self, row: int, known: list[Hashable], place: int) -> BlockRun | None:
        """The run that a request with these keys of shared blocks finds a place of its sequence in."""
        return self._serving.get(known[place]) if place < len(known) else self._own_run(row, place)

    def _holders(self, row: int, known: list[Hashable], most: int) -> list[_Held]:
        """The runs that hold the leading blocks with these keys, up to `most` or to the first that is not cached.

        A request is looked up as it is planned, as it is admitted, and as it takes its blocks. So the last answer is
        kept until the cache changes.
        """
        looked = (row, self._changes)
        if looked == self._looked and (most == self._most or most == self._reached):
            return self._held
        held: list[_Held] = []
        start = 0
        while start < most:
            run = self._serving.get(known[start])
            if run is None:
                break
            stop = self._reach(run, known, start, most)
            held.append((run, start, stop))
            start = stop
        self._looked, self._most, self._reached, self._held = looked, most, start, held
        return held

    def _reach(self, run: BlockRun, known: list[Hashable], start: int, stop: int) -> int:
        """The place up to which a request goes on finding its sequence in this run, where it does from `start` on."""
        end = run.start + run.size
        if stop > end:
            stop = end
        servers = list(map(self._serving.get, known[start:stop]))
        if servers.count(run) == stop - start:
            return stop
        place = 1
        while servers[place] is run:
            place += 1
        return start + place

    def _own_run(self, row: int, place: int) -> BlockRun | None:
        """The first run to have entered that holds this place of a request's own blocks."""
        for run in self._own.get(row, ()):
            if run.start <= place < run.start + run.size:
                return run
        return None

    def freed_with(self, held: Mapping[int, int]) -> int:
        """Blocks that only these rows use, each of which holds so many."""
        freed = 0
        used: Counter[BlockRun] = Counter()
        for row, blocks in held.items():
            table = self._tables.get(row)
            if table is None:
                freed += blocks
            else:
                freed += blocks - table.held
                used.update(table.parts())
        return freed + sum([run.size for run, count in used.items() if count == run.references])

    # Taking

    def take_hits(self, request: Request, blocks: int) -> None:
        """Begin the request's table with its first `blocks` blocks, which are cached."""
        table = self._tables[request.row] = RequestBlocks()
        table.held = table.entered = blocks
        if not blocks:
            return
        known = self.keys.of(request).first(blocks)
        shared = blocks if blocks < len(known) else len(known)
        start = shared
        for holder, first, stop in self._holders(request.row, known, shared):
            # The use of places before may have split it.
            whole = holder.start + holder.size >= stop
            self._use(table, holder if whole else self._serving[known[first]], first, stop)
        while start < blocks:
            run = self._own_run(request.row, start)
            assert run is not None
            stop = start + 1
            while stop < blocks and self._own_run(request.row, stop) is run:
                stop += 1
            self._use(table, run, start, stop)
            start = stop

    def _use(self, table: RequestBlocks, run: BlockRun, start: int, stop: int) -> None:
        """Let a table go on with these places of a run, which is split where it holds more."""
        self._changes += 1
        if run.start < start:
            run = self._split(run, start)
        if stop < run.start + run.size:
            self._split(run, stop)
        if not run.references:
            self._free.remove(run)
            self.num_free -= run.size
        run.references += 1
        table.runs.append(run)

    def _split(self, run: BlockRun, place: int) -> BlockRun:
        """Split a run before this place; returns the second half. Both stay in use, or where they are in the queue."""
        head = place - run.start
        half = BlockRun(run.row, place, run.size - head)
        half.references = run.references
        run.size = head
        if run.keys is None:
            own = self._own[run.row]
            own.insert(own.index(run) + 1, half)
        else:
            half.keys = run.keys[head:]
            del run.keys[head:]
            if self._others.keys().isdisjoint(half.keys):
                self._serving.update(dict.fromkeys(half.keys, half))
            else:
                self._hand_over(half.keys, run, half)
        if run.references:
            half.rest, run.rest = run.rest, half
        else:
            self._free.put(half, run)
        return half

    def _hand_over(self, keys: list[Hashable], run: BlockRun, half: BlockRun) -> None:
        """Let a half of a run have the blocks with these keys."""
        for key in keys:
            if self._serving[key] is run:
                self._serving[key] = half
            else:
                others = self._others[key]
                others[others.index(run)] = half

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

    def _take(self, blocks: int) -> None:
        """Take blocks from the front of the queue."""
        self.num_free -= blocks
        empty = blocks if blocks < self._empty else self._empty
        self._empty -= empty
        blocks -= empty
        self._changes += blocks
        while blocks:
            run = self._free.first
            gone = blocks if blocks < run.size else run.size
            if run.keys is not None:
                self._forget(run, run.keys, gone)
            run.size -= gone
            blocks -= gone
            if not run.size:
                self._free.remove(run)
                if run.row in self._own and run.keys is None:
                    self._own[run.row].remove(run)

    def _forget(self, run: BlockRun, keys: list[Hashable], blocks: int) -> None:
        """Forget the content of the last blocks of a run."""
        serving, others = self._serving, self._others
        gone = keys[-blocks:]
        del keys[-blocks:]
        for key in gone:
            if key not in others:
                del serving[key]
                continue
            if serving[key] is run:
                serving[key] = others[key].pop(0)
            else:
                others[key].remove(run)
            if not others[key]:
                del others[key]

    def enter(self, request: Request, full_blocks: int) -> None:
        """Enter the request's first `full_blocks` blocks, full at the latest after this step, into the cache."""
        table = self._tables.get(request.row)
        if table is None:
            table = self._tables[request.row] = RequestBlocks()
        if full_blocks <= table.entered:
            return
        keys = self.keys.of(request)
        stop = full_blocks if full_blocks < keys.num_shared else keys.num_shared
        if stop > table.held:
            self._enter_shared(table, request.row, keys.first(stop)[table.held : stop])
        table.entered = full_blocks

    def _enter_shared(self, table: RequestBlocks, row: int, new: list[Hashable]) -> None:
        """Enter blocks with these keys behind the runs of a table, as a run, or as more of its last if that is its."""
        self._changes += 1
        if self.unfilled:
            self._fill(row, new)
        run = table.runs[-1] if table.runs else None
        if run is None or run.keys is None or run.references > 1 or run.start + run.size < table.held:
            run = BlockRun(row, table.held, 0, [])
            run.references = 1
            table.runs.append(run)
        assert run.keys is not None
        run.keys += new
        run.size += len(new)
        table.held += len(new)
        serving = self._serving
        if serving.keys().isdisjoint(new):
            serving.update(dict.fromkeys(new, run))
            return
        served = list(map(serving.__contains__, new))
        first = served.index(False) if False in served else len(new)  # the first that is not served by another run
        for key in new[first:]:
            if serving.setdefault(key, run) is not run:
                self._others[key].append(run)
        deque(map(list.append, map(self._others.__getitem__, new[:first]), repeat(run)), maxlen=0)

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
        table = self._tables.pop(row, None)
        if table is None:
            table = RequestBlocks()
        unknown, own = num_blocks - table.entered, table.entered - table.held
        if unknown < 0:
            raise ValueError(f"row {row} holds {table.entered} blocks, not {num_blocks}")
        self.num_free += unknown + own
        if self.unknown_first:
            self._empty += unknown
        else:
            self._append_nameless(unknown)
        if not comes_back:
            self._append_nameless(own)
        elif own:
            run = BlockRun(row, table.held, own)
            self._own.setdefault(row, []).append(run)
            self._free.append(run)
        self._changes += 1
        for run in reversed(table.parts()):
            run.references -= 1
            if not run.references:
                run.rest = None
                self.num_free += run.size
                self._free.append(run)

    def _append_nameless(self, blocks: int) -> None:
        """Put blocks to the end of the queue that nobody will look for."""
        last = self._free.last
        if last.row == _NOBODY and last.size:
            last.size += blocks
        elif blocks:
            self._free.append(BlockRun(_NOBODY, 0, blocks))

    def clear(self) -> None:
        """Forget all content; no request holds a block."""
        self._changes += 1
        self._empty = self.num_blocks
        self._free = FreeRuns()
        self._serving.clear()
        self._others.clear()
        self._own.clear()

    def end(self, row: int) -> None:
        """Forget the keys of a request that has ended."""
        self.keys.end(row)
        self._own.pop(row, None)

    def check(self) -> None:
        """Raise AssertionError unless references, free queue and cache agree."""
        used = Counter([run for table in self._tables.values() for run in table.parts()])
        assert all(run.references == count for run, count in used.items()), "references differ from the tables"
        free = list(self._free)
        assert not any(run.references for run in free), "a run is free and in use"
        assert self.num_free == self._empty + sum([run.size for run in free]), "free queue differs"
        runs = {*used, *free}
        assert all(run.keys is None or len(run.keys) == run.size > 0 for run in runs), "keys differ from the blocks"
        held = Counter([(run, key) for run in runs for key in run.keys or ()])
        cached = Counter([(run, key) for key, run in self._serving.items()])
        cached.update([(run, key) for key, others in self._others.items() for run in others])
        assert held == cached, "cache differs from the keys"
        own = [run for runs_of in self._own.values() for run in runs_of]
        assert all(run.size and run in runs for run in own), "a request's own run is gone"
