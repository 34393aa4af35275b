"""Tiers below the host, and a host that asks them for the chunks it lacks (vllm/v1/kv_offload/tiering, 0.33)."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from simulator.memory.offload import EvictionPolicy, FurtherTierConfig
from simulator.memory.offload.tier import HostTier

_UNBOUNDED: Final = 2**53
_ABSENT: Final = -1


class FurtherTier(HostTier):
    """A tier whose copies follow each other, those in one direction after one another."""

    def __init__(self, config: FurtherTierConfig, chunk_bytes: int) -> None:
        super().__init__(_UNBOUNDED if config.num_chunks is None else config.num_chunks, config.eviction_policy)
        self._config = config
        self._chunk_bytes = chunk_bytes
        self._free_s = [0.0, 0.0]  # for a load, for a store

    def copy(self, num_chunks: int, now_s: float, *, is_store: bool) -> tuple[float, float]:
        """Begin a copy as soon as the bytes of those before it are through; returns when that is, and when it ends."""
        start_s = max(now_s, self._free_s[is_store])
        self._free_s[is_store] = start_s + num_chunks * self._chunk_bytes / self._config.bandwidth
        return start_s, self._free_s[is_store] + self._config.latency_s


@dataclass(slots=True)
class _Answer:
    """The tier that has a chunk, None while that is not known; and the rows of the requests that ask."""

    place: int | None = None
    rows: set[int] = field(default_factory=set)


class TieredHost(HostTier):
    """A host with `further` tiers. In a look-up a chunk that one of these has counts as being written here.

    Tiers answer with the next plan. An answer is kept as long as a request that asked for the chunk is there, so that
    what was absent stays absent for it. A chunk that the host has no room for is absent.
    """

    def __init__(self, num_chunks: int, policy: EvictionPolicy, further: Sequence[HostTier]) -> None:
        super().__init__(num_chunks, policy)
        self._further = further
        self._answers: dict[Hashable, _Answer] = {}
        self._asked: dict[Hashable, None] = {}  # since the last plan
        self._keys: dict[int, dict[Hashable, None]] = {}  # by row, what its request asked for
        self._wanted: dict[Hashable, int] = {}  # chunk -> the tier that it is to come from
        self._looks: dict[int, list[Hashable]] = {}  # by row, the chunks that are wanted, or there
        self._row: int | None = None  # of the request that looks
        self._num_found = 0  # idle chunks that it has found

    def begin_look(self, row: int) -> None:
        """The next questions are those of this request, from its first chunk on."""
        self._row, self._num_found = row, 0
        self._looks[row] = []

    def end_look(self) -> None:
        """The look-up is over: questions are about the host alone."""
        self._row = None

    def is_there(self, key: Hashable) -> bool | None:
        """See `HostTier.is_there`; in a look-up further tiers are asked too."""
        there = super().is_there(key)
        if self._row is None:
            return there
        if there is False:
            there = self._is_further(key, self._row)
        elif there:
            self._num_found += not self.chunks[key]
        if there is not False and (key in self.chunks or key in self._wanted):
            self._looks[self._row].append(key)
        return there

    def _is_further(self, key: Hashable, row: int) -> bool | None:
        if key in self._wanted:
            return None
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = _Answer()
            self._asked[key] = None
        answer.rows.add(row)
        self._keys.setdefault(row, {})[key] = None
        if answer.place is None:
            return None
        if answer.place == _ABSENT or not self._further[answer.place].is_there(key):
            return False
        taken = len(self.chunks) - self.num_idle + self._num_found + len(self._wanted)
        if taken >= self.num_chunks:
            return False
        self._wanted[key] = answer.place
        return None

    def take_wanted(self) -> dict[int, tuple[list[Hashable], dict[Hashable, int]]]:
        """By row, the chunks that its look-up found and wants, and the tiers of those wanted; nothing is wanted then.

        A chunk that several want is the first one's.
        """
        found: dict[int, tuple[list[Hashable], dict[Hashable, int]]] = {}
        for row, keys in self._looks.items():
            places = {key: self._wanted.pop(key) for key in keys if key in self._wanted}
            if places:
                found[row] = keys, places
        self._looks.clear()
        self._wanted.clear()
        return found

    def give_up(self, keys: Iterable[Hashable]) -> None:
        """These do not come: they are absent for those who asked."""
        for key in keys:
            self._answers[key].place = _ABSENT

    def answer(self) -> None:
        """The tiers answer what was asked since the last plan: the first that has the chunk is named."""
        for key in self._asked:
            if key in self._answers:
                has = (place for place, tier in enumerate(self._further) if tier.is_there(key))
                self._answers[key].place = next(has, _ABSENT)
        self._asked.clear()

    def forget(self, row: int) -> None:
        """The request has left: answers that it alone asked for are dropped."""
        for key in self._keys.pop(row, ()):
            answer = self._answers[key]
            answer.rows.discard(row)
            if not answer.rows:
                del self._answers[key]
