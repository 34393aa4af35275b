"""The counts of a step that the physics of attention kernels goes by, as arrays with names: for fits and tables.

`simulator.timing.profile.counts` has those of one step.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from simulator.timing.profile.counts import TILE


def decode_features(seqs: Any, context: Any) -> dict[str, Any]:
    """Counts of batches of equal decodes."""
    return {"seqs": seqs, "keys": seqs * context, "chain": context}


def prompt_features(
    chunks: Any, tokens: Any, pairs: Any, longest: Any, seqs: Any, context: Any, knee_keys: float = inf
) -> dict[str, Any]:
    """Counts of steps with prompt chunks."""
    keys = seqs * context
    return {
        "seqs": seqs,
        "keys": keys,
        "missed": keys * np.clip(np.log2(np.maximum(keys / knee_keys, 0.25)) + 0.5, 0.0, 1.0),
        "pairs": pairs,
        "tokens": tokens,
        "tiles": (chunks + seqs) * -(-tokens // (chunks * TILE)),
        "chain": np.maximum(longest, context),
    }
