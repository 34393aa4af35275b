"""The rows of a trace in the order and at the times of the replay: sorted, overlaid, repeated, jittered, scaled."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scenarios.traces.columns import Columns, Targets, also_after, merged
from scenarios.traces.options import TraceOptions
from scenarios.traces.rows import plural
from simulator.request import PromptContent
from simulator.workload import Floats, Ints

# Copies of a trace laid over each other: more users of its kind, each copy at times of its own.
#
# A copy is another group of clients that behaves as the recorded one does. It is shifted by a drawn offset, and
# what then lies behind the end of the part comes at its beginning, so that the load is spread over the part as
# before. A session moves as a whole by the offset of its first request, and may therefore last beyond the end. Of
# the last copy, the share that a fraction of `copies` says is kept, sessions as a whole. More copies never change
# the first ones.


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
    from scenarios.random_draws import stream  # here, for it brings pydantic, and few traces are copied

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


LATEST_START_S = 1e6  # a native trace that begins later than in eleven days is dated: its times are no run's
_BURSTY = 0.5  # share of equal stamps from which a note speaks of jitter


@dataclass(frozen=True, slots=True)
class Arranged:
    """The requests of a replay, in order.

    `arrival` (seconds) ascends; `place` is that of each in the columns, `copy` the pass of the loop, from 0; `layer` is
    the copy of those laid over each other, from 0, or None where there is one. `after` is the request (a place in these
    arrays, an earlier one) whose answer it follows, or -1; None where no row follows one. `also_after` are the others
    that a join waits for; None without joins.
    """

    arrival: Floats
    place: Ints
    copy: Ints
    after: Ints | None
    notes: list[str]
    layer: Ints | None = None
    also_after: list[tuple[int, ...]] | None = None


def arrange(
    columns: Columns, options: TraceOptions, names: Sequence[str] | None, timed: bool, targets: Targets | None = None
) -> Arranged:
    """Arrange the rows for a replay. `names` are the rows' own, None where the file gives none; `targets`: joins."""
    notes = []
    stamps = np.asarray(columns.arrival)
    late = count_late(stamps)
    if late:
        notes.append(late_note(late))
    place = np.argsort(stamps, kind="stable")
    arrival: Floats = (stamps[place] - zero_of(columns.in_ns, min(columns.arrival), options)).astype(np.float64)
    if columns.in_ns:
        arrival /= 1e9
    after, dropped = _followed(columns, place, names, targets)
    if dropped:
        notes.append(
            f"{plural(dropped, 'request')} that follow an unknown or later request: replayed at the recorded time"
        )
    steps = np.diff(arrival)
    count = len(arrival)
    copy, layer = np.zeros(count, dtype=np.int64), None
    if options.loop > 1:
        arrival, place, copy, after = _repeated(arrival, place, after, options)
        notes.append(f"replayed {options.loop:,} times; a prefix cache finds the copies, which have equal contents")
    if options.copies > 1:
        also = _also(targets, after, place, copy, None)
        arrival, place, copy, layer, after = _overlaid(columns, arrival, place, copy, after, also, options)
        shift = "anywhere in it" if options.shift_s is None else f"by up to {options.shift_s:g} s"
        notes.append(
            f"{options.copies:g} copies of the trace laid over each other, each after the first shifted {shift} "
            f"(seed {options.seed}); their clients, sessions and prompts are others, shared text stays shared"
        )
    if options.jitter_s:
        notes.append(f"jitter: each arrival moved by up to {options.jitter_s:g} s (seed {options.seed})")
        also = _also(targets, after, place, copy, layer)
        arrival = arrival + _jitter(len(arrival), options.seed, after, also) * options.jitter_s
    if options.jitter_s or layer is not None:
        again = np.argsort(arrival, kind="stable")
        arrival, place, copy = arrival[again], place[again], copy[again]
        after = None if after is None else _moved(after, again)
        layer = None if layer is None else layer[again]
    elif timed:
        notes += tick_notes(int(np.count_nonzero(steps == 0)), len(steps), steps[steps > 0])
    if options.rate_scale != 1.0:
        notes.append(f"rate x {options.rate_scale:g}: times divided by {options.rate_scale:g}")
        arrival = arrival / options.rate_scale
    return Arranged(arrival, place, copy, after, notes, layer, _also(targets, after, place, copy, layer))


def _also(
    targets: Targets | None, after: Ints | None, place: Ints, copy: Ints, layer: Ints | None
) -> list[tuple[int, ...]] | None:
    return None if targets is None or after is None else also_after(targets, after, place, copy, layer)


def zero_of(in_ns: bool, first: float, options: TraceOptions) -> float:
    """The arrival that becomes 0: the first, but on the clock `run` the start of the window.

    Times on that clock count from the start of the run that they describe, and are kept to the bit. Where they begin
    so late that they must be dates, the first arrival is 0 there too.
    """
    return first if in_ns or first >= LATEST_START_S else options.start_s


def count_late(stamps: NDArray[np.int64] | NDArray[np.float64]) -> int:
    """Count the rows that come after a later one."""
    return int(np.count_nonzero(stamps < np.maximum.accumulate(stamps)))


def late_note(late: int) -> str:
    """Return the notes about rows that were out of order."""
    return f"{plural(late, 'row')} came after a later arrival and moved up (a stable sort)"


def tick_notes(equal: int, steps: int, others: Floats) -> list[str]:
    """Return the note for arrivals of which most `steps` are 0; `others` are the steps that are not."""
    if equal <= _BURSTY * steps:
        return []
    tick = float(np.median(others)) if len(others) else 0.0
    usual = f", the others usually {tick:g} s; jitter_s: {tick:g} would spread them" if tick else ""
    return [f"{equal / steps:.1%} of arrivals come at the same time as the one before{usual}"]


def _followed(
    columns: Columns, place: Ints, names: Sequence[str] | None, targets: Targets | None
) -> tuple[Ints | None, int]:
    """For each sorted row the one it follows (of several, the last that arrived), or -1; and how many name a row that
    is not there or comes later."""
    given: list[str | None] | None = columns.extra.get("after_request_id")
    if targets is not None:
        given = given or [None] * len(place)
    if given is None:
        return None, 0
    own = map(str, columns.row) if names is None else names
    places = {name: index for index, name in enumerate(own)}
    target = np.array([-1 if name is None else places.get(name, -1) for name in given], dtype=np.int64)
    rank = np.empty(len(place), dtype=np.int64)
    rank[place] = np.arange(len(place))
    after = np.where(target >= 0, rank[target], -1)
    for row, waits in enumerate(targets or ()):
        if waits:
            after[row] = max(rank[list(waits)])
    after = after[place]
    after[after >= np.arange(len(after))] = -1
    asked = sum(name is not None for name in given)
    found = int(np.count_nonzero(after >= 0))
    return (after if found else None), asked + sum(map(bool, targets or ())) - found


def _repeated(
    arrival: Floats, place: Ints, after: Ints | None, options: TraceOptions
) -> tuple[Floats, Ints, Ints, Ints | None]:
    """The rows as often as `loop` says, one pass behind the other."""
    count, loop = len(arrival), options.loop
    period = _period_s(arrival, options.duration_s)
    copy = np.repeat(np.arange(loop, dtype=np.int64), count)
    repeated = None if after is None else np.where(np.tile(after, loop) >= 0, np.tile(after, loop) + copy * count, -1)
    return np.tile(arrival, loop) + copy * period, np.tile(place, loop), copy, repeated


def _period_s(arrival: Floats, duration_s: float | None) -> float:
    """Seconds from the beginning of a part to that of the next one like it, where the mean rate goes on."""
    count, seconds = len(arrival), float(arrival[-1] - arrival[0])
    # Rows before the first of the file, out of order, are in the window too: the part may last longer than it.
    return seconds * count / max(count - 1, 1) if duration_s is None else max(duration_s, seconds)


def _overlaid(
    columns: Columns,
    arrival: Floats,
    place: Ints,
    copy: Ints,
    after: Ints | None,
    also: list[tuple[int, ...]] | None,
    options: TraceOptions,
) -> tuple[Floats, Ints, Ints, Ints, Ints | None]:
    """The rows of all copies, with the copy that each is in; still copy by copy."""

    count, given = len(arrival), columns.extra.get("session_id")
    sessions = None if given is None else [given[at] for at in place.tolist()]
    window_s = None if options.duration_s is None else options.duration_s * options.loop
    units = merged(units_of(sessions, copy, after, count), also or ())
    over = laid_over(arrival, units, _period_s(arrival, window_s), options.copies, options.shift_s, options.seed)
    return over.arrival, place[over.row], copy[over.row], over.layer, followers_of(after, over, count)


def _jitter(count: int, seed: int, after: Ints | None, also: list[tuple[int, ...]] | None) -> Floats:
    """Uniform draws from [0, 1), one a request, that depend on nothing but the seed; a session has one throughout."""
    from scenarios.random_draws import stream  # here, for it brings pydantic, and few traces are jittered

    drawn = stream(seed, "trace", "jitter").random(count)
    if after is None:
        return drawn
    root = np.where(after >= 0, after, np.arange(count))
    while not np.array_equal(further := root[root], root):
        root = further
    return drawn[merged(root, also or ())]


def _moved(after: Ints, order: Ints) -> Ints:
    """The rows in another order."""
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    moved = after[order]
    return np.where(moved >= 0, rank[moved], -1)
