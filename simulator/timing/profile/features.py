"""The counts of a step that the physics of attention kernels goes by, for numbers or arrays of them.

Several prompt chunks of a step are looked up as one: of all their tokens, behind so many cached ones that it visits as
many (query, key) pairs. Where they visit fewer than a fresh prompt of that length, only the physics can know it.
"""

from __future__ import annotations

from math import inf, log2
from typing import Any

import numpy as np

TILE = 128
"""Query rows of a tile of the prefill kernels (FlashAttention 2 and 3 with heads of 128)."""


def windowed_pairs(chunks: float, tokens: float, pairs: float, window: float) -> float:
    """Of the (query, key) pairs of equal chunks, those within a window: the first queries of a chunk see less of it.

    A chunk's queries see from `cached` + 1 to `cached` + `each` keys, as many as its pairs say.
    """
    each = tokens / chunks
    cached = max(0.0, pairs / tokens - 0.5 * (each + 1.0))
    short = min(each, max(0.0, window - cached))  # queries that see less than the window
    return chunks * (short * cached + 0.5 * short * (short + 1.0) + (each - short) * window)


def decode_features(seqs: Any, context: Any) -> dict[str, Any]:
    """Counts of a batch of equal decodes, as numbers or arrays."""
    return {"seqs": seqs, "keys": seqs * context, "chain": context}


def prompt_features(
    chunks: Any, tokens: Any, pairs: Any, longest: Any, seqs: Any, context: Any, knee_keys: float = inf
) -> dict[str, Any]:
    """Counts of a step with prompt chunks, as numbers or arrays.

    `tiles` is the kernel's grid: as many tiles for each sequence as the longest chunk has, most of them empty for a
    decode. `chain` is the most keys that a tile reads one after another, `missed` the decodes' keys as far as the L2
    cache does not hold them: all from sqrt(2) x the knee on, none up to the knee / sqrt(2).
    """
    arrays = isinstance(longest, np.ndarray)
    keys = seqs * context
    return {
        "seqs": seqs,
        "keys": keys,
        "missed": keys * _missed(keys, knee_keys, arrays),
        "pairs": pairs,
        "tokens": tokens,
        "tiles": (chunks + seqs) * -(-tokens // (chunks * TILE)),
        "chain": np.maximum(longest, context) if arrays else max(longest, context),
    }


def _missed(keys: Any, knee_keys: float, arrays: bool) -> Any:
    if arrays:
        return np.clip(np.log2(np.maximum(keys / knee_keys, 0.25)) + 0.5, 0.0, 1.0)
    return min(1.0, max(0.0, log2(keys / knee_keys) + 0.5)) if keys > 0.5 * knee_keys else 0.0
