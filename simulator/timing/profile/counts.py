"""The counts of a step that the physics of attention kernels goes by: functions alone, so that they can be compiled.

Several prompt chunks of a step are looked up as one: of all their tokens, behind so many cached ones that it visits as
many (query, key) pairs. Where they visit fewer than a fresh prompt of that length, only the physics can know it.
"""

from math import inf, log2

TILE = 128  # query rows of a tile of the prefill kernels (FlashAttention 2 and 3 with heads of 128)
DECODE_COUNTS = ("seqs", "keys", "chain")
PROMPT_COUNTS = ("seqs", "keys", "missed", "pairs", "tokens", "tiles", "chain")
"""The names, in their order.

`tiles` is the kernel's grid: as many tiles for each sequence as the longest chunk has, most of them empty for a
decode. `chain` is the most keys that a tile reads one after another, `missed` the decodes' keys as far as the L2
cache does not hold them: all from sqrt(2) x a knee on, none up to the knee / sqrt(2).
"""


def decode_counts(seqs: int, context: float) -> tuple[float, ...]:
    """Counts of a batch of decodes with this mean context."""
    return seqs, seqs * context, context


def prompt_counts(
    chunks: int, tokens: int, pairs: float, longest: int, seqs: int = 0, context: float = 0.0, knee_keys: float = inf
) -> tuple[float, ...]:
    """Counts of prompt chunks, and of decodes that are computed in one kernel with them."""
    tiles = -(-tokens // (chunks * TILE))
    if not seqs:
        return 0, 0.0, 0.0, pairs, tokens, chunks * tiles, float(longest)
    keys = seqs * context
    missed = keys * min(1.0, max(0.0, log2(keys / knee_keys) + 0.5)) if keys > 0.5 * knee_keys else 0.0
    return seqs, keys, missed, pairs, tokens, (chunks + seqs) * tiles, max(float(longest), context)


def windowed_pairs(chunks: float, tokens: float, pairs: float, window: float) -> float:
    """The (query, key) pairs of equal chunks that lie within a window: the first queries of a chunk see less of it.

    A chunk's queries see from `cached` + 1 to `cached` + `each` keys, as many as its pairs say.
    """
    each = tokens / chunks
    cached = max(0.0, pairs / tokens - 0.5 * (each + 1.0))
    short = min(each, max(0.0, window - cached))  # queries that see less than the window
    return chunks * (short * cached + 0.5 * short * (short + 1.0) + (each - short) * window)
