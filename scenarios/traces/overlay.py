"""Copies of a trace laid over each other: more users of its kind, each copy at times of its own.

A copy is another group of clients that behaves as the recorded one does. It is shifted by a drawn offset, and what then
lies behind the end of the part comes at its beginning, so that the load is spread over the part as before. A session
moves as a whole by the offset of its first request, and may therefore last beyond the end. Of the last copy, the share
that a fraction of `copies` says is kept, sessions as a whole. More copies never change the first ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.request import PromptContent
from simulator.workload import Floats, Ints


@dataclass(frozen=True, slots=True)
class Overlay:
    """Rows of all copies, the first copy's first; `row` is their place in the part, `layer` their copy, from 0."""

    arrival: Floats
    row: Ints
    layer: Ints


def laid_over(
    arrival: Floats, units: Ints, period_s: float, copies: float, shift_s: float | None, seed: int
) -> Overlay:
    """Lay `copies` of a part over each other.

    `arrival` ascends; `units` is the first row of each row's session, the row itself where it has none. Offsets are
    drawn from [0, `shift_s`), or from the whole of `period_s` where that is None.
    """
    from scenarios.streams import stream  # here, for it brings pydantic, and few traces are copied

    count, start = len(arrival), float(arrival[0])
    spread = period_s if shift_s is None else shift_s
    parts: list[tuple[Floats, Ints]] = [(arrival, np.arange(count, dtype=np.int64))]
    while len(parts) < copies:
        draws = stream(seed, "trace", f"copy {len(parts)}")
        offset = draws.random() * spread
        first = arrival[units] - start + offset
        moved = start + (first % period_s if period_s > 0 else first) + (arrival - arrival[units])
        left = copies - len(parts)
        kept = np.flatnonzero(draws.random(count)[units] < left) if left < 1 else np.arange(count, dtype=np.int64)
        parts.append((moved[kept], kept))
    layer = np.repeat(np.arange(len(parts), dtype=np.int64), [len(rows) for _, rows in parts])
    return Overlay(np.concatenate([times for times, _ in parts]), np.concatenate([rows for _, rows in parts]), layer)


def followers_of(after: Ints | None, overlay: Overlay, count: int) -> Ints | None:
    """Return for each row of the overlay the place of the one that it follows, or -1; None where no row follows one.

    `after` says so of the `count` rows of the part. A session is kept or left out as a whole, so what a row follows is
    there.
    """
    if after is None:
        return None
    place = np.full((int(overlay.layer[-1]) + 1, count), -1, dtype=np.int64)
    place[overlay.layer, overlay.row] = np.arange(len(overlay.row))
    ahead = after[overlay.row]
    return np.where(ahead >= 0, place[overlay.layer, ahead], -1)


def units_of(sessions: Sequence[str | None] | None, passes: Ints, after: Ints | None, count: int) -> Ints:
    """Return for each row the first row of its session or chain of followers; the row itself where it is in none."""
    units = np.arange(count, dtype=np.int64)
    if after is not None:
        for row in np.flatnonzero(after >= 0).tolist():  # what it follows lies before it
            units[row] = units[after[row]]
    if sessions is not None:
        seen: dict[tuple[str, int], int] = {}
        for row, (name, turn) in enumerate(zip(sessions, passes.tolist(), strict=True)):
            if name is not None:
                units[row] = units[seen.setdefault((name, turn), row)]
    return units


class OwnContents:
    """Prompts of the copies: each copy's clients say things of their own, and share what is shared text in the trace.

    Shared text is what at least two sessions of the trace have, up to where they part; and a `prefix_group`, unless all
    its requests are of one session. Where a request names no session, its block hashes or token ids cannot tell a
    system prompt from the client's own conversation: all of it is the copy's own, which finds less in a prefix cache.
    """

    def __init__(self, contents: Sequence[PromptContent | None], sessions: Sequence[str | None] | None) -> None:
        self._contents = contents
        owners: Sequence[str | None] = [None] * len(contents) if sessions is None else sessions
        groups: dict[str, set[str | None]] = {}
        for content, owner in zip(contents, owners, strict=True):
            if content is not None and content.prefix_group is not None:
                groups.setdefault(content.prefix_group, set()).add(owner)
        self._own_groups = {name for name, of in groups.items() if len(of) == 1 and None not in of}
        self._hashes = [() if each is None else each.block_hashes for each in contents]
        self._tokens = [() if each is None else each.prompt_token_ids + each.output_token_ids for each in contents]
        self._shared_hashes = _shared_lengths(self._hashes, owners)
        self._shared_tokens = _shared_lengths(self._tokens, owners)
        self._hash_span, self._token_span = _span(self._hashes), _span(self._tokens)

    def of(self, place: int, layer: int) -> PromptContent | None:
        """Return the content of a row in a copy."""
        content = self._contents[place]
        if content is None or not layer:
            return content
        group, prompt = content.prefix_group, len(content.prompt_token_ids)
        tokens = _renamed(self._tokens[place], self._shared_tokens[place], layer * self._token_span)
        return PromptContent(
            _renamed(content.block_hashes, self._shared_hashes[place], layer * self._hash_span),
            content.hash_block_size,
            f"{group}@{layer + 1}" if group in self._own_groups else group,
            content.prefix_tokens,
            tokens[:prompt],
            tokens[prompt:],
        )


def _renamed(names: tuple[int, ...], shared: int, by: int) -> tuple[int, ...]:
    return (*names[:shared], *(name + by for name in names[shared:]))


def _span(names: Sequence[tuple[int, ...]]) -> int:
    """Return a number by which names can be moved without meeting another."""
    ends = [(min(each), max(each)) for each in names if each]
    return 1 + max((high for _, high in ends), default=0) - min((low for low, _ in ends), default=0)


def _shared_lengths(names: Sequence[tuple[int, ...]], owners: Sequence[str | None]) -> NDArray[np.int64]:
    """Return how many leading names each row has in common with a row of another session; 0 where it has no session.

    In lexicographic order the row with the longest common prefix is the nearest one on either side.
    """
    shared = np.zeros(len(names), dtype=np.int64)
    order = sorted((row for row, owner in enumerate(owners) if owner is not None and names[row]), key=names.__getitem__)
    for way in (order, order[::-1]):
        last: int | None = None  # the latest row, and the latest one of another session than that
        other: int | None = None
        for row in way:
            if last is not None and owners[last] != owners[row]:
                other = last
            if other is not None:
                shared[row] = max(shared[row], _in_common(names[row], names[other]))
            last = row
    return shared


def _in_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Count the leading names that two rows have in common."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # equal up to `low`, and not beyond `high`
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
