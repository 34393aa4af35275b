"""Adaptive replacement: chunks seen once and chunks seen again, each with a part of the tier that adapts.

As in vllm/v1/kv_offload/cpu/policies/arc.py; the algorithm is that of Megiddo and Modha (FAST 2003).
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from simulator.memory.offload.access import Access

Keys = OrderedDict[Hashable, None]


class Arc:
    """`once` and `again` hold the chunks, oldest first; the ghosts of each, the keys of what left it of late."""

    def __init__(self, num_chunks: int) -> None:
        self._num_chunks = num_chunks
        self._once: Keys = OrderedDict()
        self._again: Keys = OrderedDict()
        self._once_gone: Keys = OrderedDict()
        self._again_gone: Keys = OrderedDict()
        self._target = 0.0  # chunks that `once` should have
        self._idle: set[Hashable] = set()

    def insert(self, key: Hashable, access: Access) -> None:
        """A chunk is about to be written."""
        self._once[key] = None
        self._once_gone.pop(key, None)
        self._again_gone.pop(key, None)

    def accessed(self, keys: Sequence[Hashable], access: Access) -> None:
        """Nothing is learnt before the request ends."""

    def missed(self, keys: Sequence[Hashable]) -> None:
        """These are about to be inserted: a ghost among them moves the target towards the part that it left."""
        once, again = self._once_gone, self._again_gone
        for key in reversed(keys):
            if key in once:
                self._target = min(self._target + max(1, len(again) / len(once)), self._num_chunks)
                once.move_to_end(key)
            elif key in again:
                self._target = max(self._target - max(1, len(once) / len(again)), 0)
                again.move_to_end(key)

    def ended(self, access: Access) -> None:
        """The request has ended: what it found here, and had not written itself, counts as seen again."""
        for key in reversed(access.in_order()):
            part = self._once if key in self._once else self._again
            if key not in part:
                continue
            if key in access.reused:
                del part[key]
                self._again[key] = None
            elif key in access.inserted:
                part.move_to_end(key)

    def release(self, key: Hashable) -> None:
        """Nothing writes or reads the chunk any more."""
        self._idle.add(key)

    def pin(self, key: Hashable) -> None:
        """An idle chunk is read from now on."""
        self._idle.remove(key)

    def evict(self, num_chunks: int, kept: Iterable[Hashable]) -> list[Hashable] | None:
        """Take out so many idle chunks that are not to be `kept`; None, and nothing, where there are fewer."""
        idle, kept = self._idle, set(kept)
        once = (key for key in self._once if key in idle and key not in kept)
        again = (key for key in self._again if key in idle and key not in kept)
        found: list[tuple[Hashable, bool]] = []
        size = len(self._once)
        for _ in range(num_chunks):
            key = next(once, None) if size >= int(self._target) else None
            from_once = key is not None
            if key is None:
                key = next(again, None)
            if key is None:
                key, from_once = next(once, None), True
            if key is None:
                return None
            size -= from_once
            found.append((key, from_once))
        for key, from_once in found:
            self._idle.remove(key)
            if from_once:
                del self._once[key]
                self._once_gone[key] = None
            else:
                del self._again[key]
                self._again_gone[key] = None
        for ghosts in (self._once_gone, self._again_gone):
            while len(ghosts) > self._num_chunks:
                ghosts.popitem(last=False)
        return [key for key, _ in found]
