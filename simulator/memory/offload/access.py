"""What one request has done with a tier of chunks."""

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Access:
    """Chunks that a request has offered or loaded.

    `places` has the end of each in the request's tokens, and the number of its KV group. `inserted` were written for
    it, `reused` found by it, `missed` counted as not found. `rank` is `simulator.memory.offload.lru`'s.
    """

    places: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    seen: dict[Hashable, None] = field(default_factory=dict)
    inserted: set[Hashable] = field(default_factory=set)
    reused: set[Hashable] = field(default_factory=set)
    missed: set[Hashable] = field(default_factory=set)
    rank: int = 0

    def in_order(self) -> list[Hashable]:
        """The chunks seen, from the head of the sequence to its tail."""
        return sorted(self.seen, key=self.places.__getitem__)
