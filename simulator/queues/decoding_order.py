"""Lists of the decoding requests in order, for policies in which a waiting request displaces running ones."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace

from simulator.request import RequestView
from simulator.request_state import RequestState


class DecodingByRank:
    """The decoding requests by `rank`, then row: the largest is the next victim. A rank stays as long as one decodes.

    A replica's batch tells it who decodes (`Meter`). Prompts under way and paused requests are not among them.
    """

    __slots__ = ("_order", "_places", "_rank")

    def __init__(self, rank: Callable[[RequestState], int]) -> None:
        self._rank = rank
        self._order: list[tuple[int, int]] = []  # rank and row, the smallest first
        self._places: dict[int, tuple[tuple[int, int], RequestState]] = {}  # by row

    def __len__(self) -> int:
        return len(self._order)

    def sampled(self, live: RequestState) -> None:
        """See `Meter`: it decodes from now on, or has finished."""

    def joined(self, live: RequestState) -> None:
        place = self._rank(live), live.row
        insort(self._order, place)
        self._places[live.row] = place, live

    def left(self, live: RequestState) -> None:
        place, _ = self._places.pop(live.row)
        del self._order[bisect_left(self._order, place)]

    def last_first(self) -> Iterator[RequestState]:
        """The decoding requests, the next victim first. Looking changes nothing."""
        places = self._places
        for _, row in reversed(self._order):
            yield places[row][1]


class Quanta:
    """The service after which requests fall from level to level: see `simulator.queues.mlfq.Mlfq`."""

    __slots__ = ("min_quantum_tokens", "prompt_tokens_per_quantum")

    def __init__(self, min_quantum_tokens: int, prompt_tokens_per_quantum: int) -> None:
        self.min_quantum_tokens = min_quantum_tokens
        self.prompt_tokens_per_quantum = prompt_tokens_per_quantum

    def served(self, request: RequestView) -> int:
        """Tokens of its service: those of its answer, and its prompt's share until it is promoted."""
        promoted_at = request.promoted_at_tokens
        if promoted_at is not None:
            return request.output_tokens_so_far - promoted_at
        prompt = request.input_tokens // self.prompt_tokens_per_quantum * self.min_quantum_tokens
        return prompt + request.output_tokens_so_far

    def level(self, request: RequestView) -> int:
        """The level, 0 the highest: quanta of q, 2q, 4q, ... use up the first n levels by q (2^n - 1) tokens."""
        return (self.served(request) // self.min_quantum_tokens + 1).bit_length() - 1

    def until_fall(self, request: RequestView, level: int) -> int:
        """Tokens until it falls from its level."""
        return self.min_quantum_tokens * ((2 << level) - 1) - self.served(request)


class DecodingByLevel:
    """The decoding requests by level, then row: the latest on the lowest level, which is the largest, comes first.

    Levels are those of `simulator.queues.mlfq.Mlfq`. A request that decodes is served a token a step, so its next fall
    is known. Falls are made when the list is looked at; how often that is does not change what is seen.
    """

    __slots__ = ("_falls", "_places", "_quanta", "_rows")

    def __init__(self, quanta: Quanta) -> None:
        self._quanta = quanta
        self._rows: list[list[int]] = []  # of each level, in order
        # (falls at this tick of the replica's clock, row, level, request), by row, and as a heap, where those are stale
        # that are no row's any more.
        self._places: dict[int, tuple[int, int, int, RequestState]] = {}
        self._falls: list[tuple[int, int, int, RequestState]] = []

    def __len__(self) -> int:
        return len(self._places)

    def sampled(self, live: RequestState) -> None:
        """See `Meter`: it decodes from now on, or has finished."""

    def joined(self, live: RequestState) -> None:
        level = self._quanta.level(live)
        heappush(self._falls, self._enter(live.clock.ticks + self._quanta.until_fall(live, level), level, live))

    def left(self, live: RequestState) -> None:
        self._leave(self._places.pop(live.row))
        if len(self._falls) > 64 + 4 * len(self._places):
            self._falls = sorted(self._places.values())

    def last_first(self) -> Iterator[RequestState]:
        """The decoding requests, the next victim first. Looking changes nothing."""
        falls, places = self._falls, self._places
        while falls and falls[0][0] <= falls[0][3].clock.ticks:
            place = falls[0]
            falls_at, row, level, live = place
            if places.get(row) != place:
                heappop(falls)
                continue
            self._leave(place)
            level += 1
            heapreplace(falls, self._enter(falls_at + (self._quanta.min_quantum_tokens << level), level, live))
        for rows in reversed(self._rows):
            for row in reversed(rows):
                yield places[row][3]

    def _enter(self, falls_at: int, level: int, live: RequestState) -> tuple[int, int, int, RequestState]:
        while level >= len(self._rows):
            self._rows.append([])
        insort(self._rows[level], live.row)
        place = self._places[live.row] = falls_at, live.row, level, live
        return place

    def _leave(self, place: tuple[int, int, int, RequestState]) -> None:
        rows = self._rows[place[2]]
        del rows[bisect_left(rows, place[1])]
