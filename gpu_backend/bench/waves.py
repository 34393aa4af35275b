"""Work items of a decode step, and the rounds in which a persistent grid gets through them. numpy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def decode_items(context_lens: npt.ArrayLike, kv_heads: int, chunk: int) -> int:
    """Work items of a decode step: a chunk of one KV head's keys each. `context_lens`: keys a sequence, 0 for none."""
    context = np.asarray(context_lens, dtype=np.int64)
    return int((-(-context // chunk)).sum()) * kv_heads


def decode_waves(context_lens: npt.ArrayLike, kv_heads: int, chunk: int, programs: int) -> int:
    """Rounds in which a persistent grid of `programs` gets through a decode step: exact, and a feature of its cost.

    Program p takes items p, p + programs, and so on, heaviest first; the last round may not be full, and the shorter
    last chunks of the sequences are in it.
    """
    return -(-decode_items(context_lens, kv_heads, chunk) // programs)
