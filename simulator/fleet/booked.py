"""What a router has sent to one replica and has not ended: requests, tokens to prefill, and different blocks in use."""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from simulator.fleet.prompt_table import Stretch

_Part = tuple[int, int, int]  # blocks of a text from a place to before another, and how many requests use them


class Booked:
    """Requests that were sent to one replica: those that have not ended, and those without a first token.

    Blocks of equal content count once. They are kept as parts of texts, not one by one.
    """

    __slots__ = ("_parts", "num_blocks", "prefill_tokens", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.prefill_tokens = 0
        self.num_blocks = 0  # different ones in use
        self._parts: dict[Hashable, list[_Part]] = {}  # by text, in order and apart

    def with_blocks(self, prompt: Iterable[Stretch]) -> int:
        """Different blocks in use, with these."""
        blocks = self.num_blocks
        for text, start, stop in prompt:
            blocks += stop - start
            for first, end, _ in self._parts.get(text, ()):
                if first < stop and start < end:
                    blocks -= min(end, stop) - max(first, start)
        return blocks

    def add(self, prompt: Iterable[Stretch]) -> None:
        """A request with these blocks is sent there."""
        self.requests += 1
        for stretch in prompt:
            self._change(stretch, 1)

    def end(self, prompt: Iterable[Stretch]) -> None:
        """A request with these blocks, which was added, has ended."""
        self.requests -= 1
        for stretch in prompt:
            self._change(stretch, -1)

    def _change(self, stretch: Stretch, more: int) -> None:
        """So many `more` requests use these blocks: 1, or -1."""
        text, start, stop = stretch
        before = self._parts.pop(text, [])
        after: list[_Part] = []
        for first, end, uses in sorted(_changed(before, start, stop, more)):
            if after and after[-1][1:] == (first, uses):
                first = after.pop()[0]
            after.append((first, end, uses))
        if after:
            self._parts[text] = after
        self.num_blocks += _size(after) - _size(before)


def _size(parts: Iterable[_Part]) -> int:
    return sum([end - first for first, end, _ in parts])


def _changed(parts: Sequence[_Part], start: int, stop: int, more: int) -> Iterator[_Part]:
    """These parts, with so many more uses of the blocks from `start` to before `stop`; in no order."""
    place = start
    for first, end, uses in parts:
        low, high = max(first, start), min(end, stop)
        if low >= high:
            yield first, end, uses
            continue
        if first < low:
            yield first, low, uses
        if high < end:
            yield high, end, uses
        if uses + more:
            yield low, high, uses + more
        if place < low:
            yield place, low, more
        place = high
    if place < stop:
        yield place, stop, more
