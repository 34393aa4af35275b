"""The fewest KV blocks that a request in a step holds, where layers keep different things of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.hardware.kv_plan import KVPlan

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """Blocks of a pool that serves several KV groups: `per_token` of the context, and those of windows and states.

    A request in a step whose context is m after it holds at least

        m x per_token  +  sum over windows of ceil(min(m, window) / block)  +  1 for each chunked group or state

    blocks. Proof. A group of full attention holds a slot for each of the m tokens, hence at least m / block blocks. A
    decode reads the keys of the last min(m, window) tokens, its own among them, and they lie in as many blocks as the
    second term says; a prompt's chunk that ends at m writes at least one token, and its last query reads the same
    window. A chunked group holds the block of the newest token, a group of states the state that the step writes. No
    block belongs to two groups, and where requests do not share KV none belongs to two requests. So these numbers
    add up to `pool` at most over all requests in a step, whatever else is in memory.
    """

    pool: int
    per_token: float
    windows: Sequence[tuple[int, int]]  # tokens, and those of a block
    others: int

    @classmethod
    def of(cls, plan: KVPlan, usable: int) -> HeldBlocks:
        """What the groups of a plan hold, in a pool of so many blocks."""
        caches = [group.cache for group in plan.groups]
        whole = sum(1.0 / cache.block_size for cache in caches if cache.kind == "full")
        windows = tuple((cache.window, cache.block_size) for cache in caches if cache.kind == "window")
        return cls(usable, whole, windows, sum(cache.kind in ("chunked", "mamba") for cache in caches))

    def beside(self, context: Floats) -> Floats:
        """Blocks of windows, chunks and states for contexts of at least so many tokens: they fall with none."""
        found = np.full(len(context), float(self.others))
        for window, size in self.windows:
            found += np.ceil(np.minimum(context, window) / size)
        return found
