"""Runs of KV blocks: those of a request, those that serve a text, and the queue of those that no request uses."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.memory.block_keys import Stretch


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
