"""How far the host has what a request needs of all KV groups.

As `_lookup_complete_chunks` of vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py (0.33).
"""

from collections.abc import Hashable, Sequence, Set

from simulator.division import cdiv
from simulator.engine.connector.offered import OffloadGroups, Part
from simulator.memory.offload.tier import HostTier


def look_up(
    groups: OffloadGroups, tier: HostTier, parts: Sequence[Part], computed: int, num_tokens: int, loading: Set[Hashable]
) -> int | None:
    """Tokens behind those computed that can be loaded; 0 if they are less than a chunk of some group.

    Groups that keep all are looked up first; each may only shorten what the others have. None while a chunk that is
    needed is being written, or is one of those that other loads read.
    """
    most = num_tokens - 1 if groups.windows else num_tokens  # a window is read by the last token again
    found, waits = 0, False
    looked_up = groups.in_order
    while looked_up:
        has_window = False
        now, looked_up = looked_up, []
        for group in now:
            size, keys = group.chunk, parts[group.number].keys
            most = min(most, len(keys) * size)
            if most - computed < size:
                return 0
            start, stop = computed // size, min(cdiv(most, size), len(keys))
            if group.window:
                needed = group.window_before(min(most, stop * size))
                chunks = _window(tier, keys[start:stop], group.window, needed)
            else:
                chunks = _prefix(tier, keys[start:stop])
            if chunks == 0:
                return 0
            if chunks is None:
                waits = True
            else:
                most = min(most, (start + chunks) * size)
            if most - computed < size:
                return 0
            if most - computed < found:
                if waits:  # the chunk that was waited for may not be needed any more
                    waits, looked_up = False, groups.in_order
                elif has_window and not looked_up:
                    looked_up = groups.windows
            has_window = has_window or group.window > 0
            found = most - computed
    if waits:
        return None
    total = computed + found
    if loading:
        for group in groups.all:
            needed_keys = parts[group.number].keys[computed // group.chunk : cdiv(total, group.chunk)]
            if group.window:
                needed_keys = needed_keys[-group.window_before(total) :]
            if not loading.isdisjoint(needed_keys):
                return None
    return found


def _prefix(tier: HostTier, keys: Sequence[Hashable]) -> int | None:
    """Leading chunks that are there; None if one of them is being written."""
    count, waits = 0, False
    for key in keys:
        there = tier.is_there(key)
        if there is False:
            break
        waits = waits or there is None
        count += 1
    return None if waits else count


def _window(tier: HostTier, keys: Sequence[Hashable], window: int, needed: int) -> int | None:
    """The end of the last run of chunks that fills a window, or else of those from the start (:658).

    The first run may need more of them. None if one of the run is being written.
    """
    run, waits = 0, False
    for place in range(len(keys) - 1, -1, -1):
        there = tier.is_there(keys[place])
        if there is False:
            run, waits, needed = 0, False, window
        else:
            run += 1
            waits = waits or there is None
        if run == needed:
            return None if waits else place + needed
    return None if waits else run
