"""Runs of KV blocks whose content is kept: which of them serve a text, which come after, and which are free.

A run enters as the first to have its content, and serves it, or as a later one, which is promoted when the first is
forgotten. Free runs keep their content until their blocks are taken, from the front of the queue.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from simulator.memory.free_runs import BlockRun, FreeRuns, ServingRuns

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
