"""Runs of KV blocks: those of a request, those whose content is kept for others, and the queue of the free ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from simulator.memory.block_keys import Stretch

# Runs, and the queue of those that no request uses.


class BlockRun:
    """Blocks at consecutive places of a sequence, from `start` on, which the same requests use.

    `text` names their content (`BlockKeys.stretches`); with 0 it is that of the request `row` alone, or nothing is
    known of it. A run that `serves` was the first to have its content, and `following` is the next such run of the
    text. `rest` is what a use of the run goes on with that began before its end was split off. One use at least is of
    the whole run; `cut` counts the others that stop before its end, by the place that they stop before.
    """

    __slots__ = ("after", "before", "cut", "following", "references", "rest", "row", "serves", "size", "start", "text")

    before: BlockRun  # in the queue, as is `after`; outside they are not looked at
    after: BlockRun

    def __init__(self, row: int, start: int, size: int, text: int = 0) -> None:
        self.row = row
        self.start = start
        self.size = size
        self.text = text
        self.serves = False
        self.references = 0
        self.following: BlockRun | None = None
        self.rest: BlockRun | None = None
        self.cut: dict[int, int] | None = None

    def cut_at(self, stop: int, uses: int) -> None:
        """Count so many more uses that stop before this place, which is before the end."""
        cut = self.cut
        if cut is None:
            self.cut = {stop: uses}
            return
        cut[stop] = left = cut.get(stop, 0) + uses
        if not left:
            del cut[stop]
            if not cut:
                self.cut = None

    def unused_from(self) -> int:
        """The place from which on no use is left: the end where one is of the whole run, the start where none is."""
        cut = self.cut
        if cut is None or self.references > sum(cut.values()):
            return self.start + self.size if self.references else self.start
        return max(cut)

    def left_by(self, stops: list[int]) -> int:
        """Blocks that nobody uses once uses that stop before these places have ended."""
        cut = self.cut
        if cut is None:  # all uses are of the whole run
            return self.size if self.references == len(stops) else 0
        end = self.start + self.size
        if self.references - sum(cut.values()) > sum([stop >= end for stop in stops]):
            return 0
        return end - max([stop for stop, uses in cut.items() if uses > stops.count(stop)], default=self.start)


class RequestBlocks:
    """The leading blocks of one request that have entered the cache: `entered`, of which `runs` hold the first `held`.

    A run counts from its start to that of the next. Behind them come blocks that are the request's own: from `shared`
    on no other request has a block's content. Before lie the `stretches` of texts (`BlockKeys.stretches`).
    """

    __slots__ = ("entered", "held", "runs", "shared", "stretches")

    def __init__(self, shared: int, stretches: list[Stretch]) -> None:
        self.stretches = stretches
        self.runs: list[BlockRun] = []
        self.held = 0
        self.entered = 0
        self.shared = shared

    def parts(self) -> list[BlockRun]:
        """The runs, with what was split off them since: a list that is not to be changed."""
        for run in self.runs:
            if run.rest is not None:
                break
        else:
            return self.runs
        parts = []
        stops = [run.start for run in self.runs[1:]]
        for run, stop in zip(self.runs, [*stops, self.held], strict=False):
            part: BlockRun | None = run
            place = run.start
            while part is not None and place < stop:
                parts.append(part)
                place = part.start + part.size
                part = part.rest
        return parts

    def uses(self) -> list[tuple[BlockRun, int]]:
        """The parts, last one first, each with the place before which the use of it stops: its end, or before that."""
        uses = []
        stop = self.held
        for part in reversed(self.parts()):
            uses.append((part, stop))
            stop = part.start
        return uses


class ServingRuns:
    """By text, the runs that are found there: no two have the same place."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[int, BlockRun] = {}

    def behind(self, text: int, place: int) -> BlockRun | None:
        """The first run of a text that ends behind this place."""
        run = self._first.get(text)
        while run is not None and run.start + run.size <= place:
            run = run.following
        return run

    def add(self, run: BlockRun) -> None:
        """Let a run serve its text."""
        run.serves = True
        other = self._first.get(run.text)
        if other is None or run.start < other.start:
            run.following = other
            self._first[run.text] = run
            return
        while other.following is not None and other.following.start < run.start:
            other = other.following
        run.following, other.following = other.following, run

    def remove(self, run: BlockRun) -> None:
        """Let a run serve no longer."""
        other = self._first[run.text]
        if other is not run:
            while other.following is not run:
                assert other.following is not None
                other = other.following
            other.following = run.following
        elif run.following is None:
            del self._first[run.text]
        else:
            self._first[run.text] = run.following

    def __iter__(self) -> Iterator[BlockRun]:
        for first in self._first.values():
            run: BlockRun | None = first
            while run is not None:
                yield run
                run = run.following

    def checked(self) -> list[BlockRun]:
        """All runs; AssertionError unless they are apart."""
        found: list[BlockRun] = []
        for text, first in self._first.items():
            run: BlockRun | None = first
            place = 0
            while run is not None:
                assert (run.text, run.serves) == (text, True), "cache differs from the texts"
                assert place <= run.start, "serving runs are not apart"
                place = run.start + run.size
                found.append(run)
                run = run.following
        return found


class FreeRuns:
    """Unused runs, the one to be allocated first in front; of a run, the last block comes first.

    They form a ring: the first is behind `ends`, a run of no blocks, and the last is before it.
    """

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends = ends = BlockRun(-1, 0, 0)
        ends.before = ends.after = ends

    def __iter__(self) -> Iterator[BlockRun]:
        run = self.ends.after
        while run is not self.ends:
            yield run
            run = run.after

    def append(self, run: BlockRun) -> None:
        """Put a run to the end; if what follows it in its text is the last there, they become one."""
        ends = self.ends
        last = ends.before
        if run.serves and last is run.following and last.start == run.start + run.size:
            run.size += last.size
            run.following = last.following
            last = last.before
        run.before, run.after = last, ends
        last.after = ends.before = run

    def put(self, run: BlockRun, after: BlockRun) -> None:
        """Put a run before the run `after`."""
        before = after.before
        run.before, run.after = before, after
        before.after = after.before = run

    def remove(self, run: BlockRun) -> None:
        before, after = run.before, run.after
        before.after, after.before = after, before
        run.before = run.after = self.ends  # links of its own would keep it, or what it was between


# Runs of KV blocks whose content is kept: which of them serve a text, which come after, and which are free.
#
# A run enters as the first to have its content, and serves it, or as a later one, which is promoted when the first
# is forgotten. Free runs keep their content until their blocks are taken, from the front of the queue.

NOBODY: Final = -1  # the row of runs that no request will look for


class CachedRuns:
    """The runs of a cache and its free blocks; who uses which of them is known to `PrefixLedger`."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.tell: Callable[[list[Hashable], int], None] | None = None  # of blocks that enter, 1, or are forgotten, -1
        self._empty = num_blocks  # free blocks in front of the queue that hold nothing
        self._free = FreeRuns()
        self._serving = ServingRuns()
        self._others: dict[int, list[BlockRun]] = {}  # text -> later ones with content that is served, as they entered
        self._own: dict[int, list[BlockRun]] = {}  # row of a request that was preempted -> runs of its own
        self._changes = 0  # of what is cached, and where

    def clear(self) -> None:
        """Forget all content; no request holds a block."""
        self._changes += 1
        self._empty = self.num_blocks
        self._free = FreeRuns()
        self._serving = ServingRuns()
        self._others.clear()
        self._own.clear()

    def _split(self, run: BlockRun, place: int) -> BlockRun:
        """Split a run before this place; returns the second half. Both stay in use, or where they are in the queue."""
        half = BlockRun(run.row, place, run.start + run.size - place, run.text)
        half.serves = run.serves
        run.size = place - run.start
        if run.serves:
            half.following, run.following = run.following, half
        else:
            same = self._others[run.text] if run.text else self._own[run.row]
            same.insert(same.index(run) + 1, half)
        if run.references:
            half.references = run.references
            half.rest, run.rest = run.rest, half
            if run.cut is not None:
                cut, run.cut = run.cut, None
                for stop, uses in cut.items():
                    if stop > place:
                        half.cut_at(stop, uses)
                    else:
                        half.references -= uses
                        if stop < place:
                            run.cut_at(stop, uses)
        else:
            self._free.put(half, run)
        return half

    def _take(self, blocks: int) -> None:
        """Take blocks from the front of the queue."""
        self.num_free -= blocks
        if blocks <= self._empty:
            self._empty -= blocks
            return
        blocks -= self._empty
        self._empty = 0
        self._changes += blocks
        tell = self.tell
        while blocks:
            run = self._free.ends.after
            gone = blocks if blocks < run.size else run.size
            blocks -= gone
            run.size = left = run.size - gone
            if not left:
                self._free.remove(run)
            if tell is not None and run.text:
                behind = run.text + run.start + left
                tell(list(range(behind, behind + gone)), -1)
            if run.serves:
                if not left:
                    self._serving.remove(run)
                if run.text in self._others:
                    place = run.start + left
                    self._promote(run.text, place, place + gone)
            elif not left:
                self._remove_other(run)

    def _remove_other(self, run: BlockRun) -> None:
        """Forget a run that serves nobody, but perhaps the request itself."""
        if run.text:
            others = self._others[run.text]
            others.remove(run)
            if not others:
                del self._others[run.text]
        elif run.row in self._own:
            self._own[run.row].remove(run)

    def _promote(self, text: int, start: int, stop: int) -> None:
        """Let the others that entered first serve these places of a text, which no run serves."""
        for run in self._others.get(text, ()):
            if run.start < stop and start < run.start + run.size:
                break
        else:
            return
        if run.start < start:
            run = self._split(run, start)
        if stop < run.start + run.size:
            self._split(run, stop)
        self._remove_other(run)
        self._serving.add(run)
        if start < run.start:
            self._promote(text, start, run.start)
        if run.start + run.size < stop:
            self._promote(text, run.start + run.size, stop)

    def _add_free(self, run: BlockRun) -> None:
        self.num_free += run.size
        self._free.append(run)

    def _append_nameless(self, blocks: int) -> None:
        """Put blocks to the end of the queue that nobody will look for."""
        last = self._free.ends.before
        if last.row == NOBODY and last.size:
            last.size += blocks
        elif blocks:
            self._free.append(BlockRun(NOBODY, 0, blocks))

    def _check_runs(self, uses: list[tuple[BlockRun, int]]) -> None:
        """Raise AssertionError unless free queue and cache agree with one another and with these uses of runs."""
        used = Counter([run for run, _ in uses])
        assert all(run.references == count for run, count in used.items()), "references differ from the tables"
        cut = Counter([(run, stop) for run, stop in uses if stop < run.start + run.size])
        assert cut == {(run, stop): count for run in used for stop, count in (run.cut or {}).items()}, "cuts differ"
        assert all(run.unused_from() == run.start + run.size for run in used), "the end of a run is not in use"
        free = list(self._free)
        assert not any(run.references for run in free), "a run is free and in use"
        assert self.num_free == self._empty + sum([run.size for run in free]), "free queue differs"
        runs = {*used, *free}
        assert all(run.size > 0 for run in runs), "a run has no blocks"
        serving = self._serving.checked()
        served = {(run.text, place) for run in serving for place in range(run.start, run.start + run.size)}
        others = [(text, run) for text, same in self._others.items() for run in same]
        assert all(run.text == text and not run.serves for text, run in others), "cache differs from the texts"
        assert all((text, run.start + at) in served for text, run in others for at in range(run.size)), "none serves"
        cached = Counter([*serving, *[run for _, run in others]])
        assert cached == Counter([run for run in runs if run.text]), "cache differs from the runs"
        own = [run for runs_of in self._own.values() for run in runs_of]
        assert all(run.size and run in runs for run in own), "a request's own run is gone"
