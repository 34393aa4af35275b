"""A step as attention kernels see it: where it lies in their tables, and the counts that their physics goes by.

Several prompt chunks of a step are looked up as one: of all their tokens, behind so many cached ones that it visits as
many (query, key) pairs. Where they visit fewer than a fresh prompt of that length, only the physics can know it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2
from typing import Any

import numpy as np

from simulator.timing.cost import StepShape
from simulator.timing.profile.surface import Array, Surface

TILE = 128
"""Query rows of a tile of the prefill kernels (FlashAttention 2 and 3 with heads of 128)."""


@dataclass(frozen=True, slots=True)
class DecodeTable:
    """A layer's attention for decodes alone, over (decode_seqs, mean context)."""

    surface: Surface

    def us(self, seqs: int, context: float) -> float:
        return self.surface.us((seqs, context), decode_features(seqs, context))

    def us_many(self, seqs: float | Array, context: Array) -> Array:
        return self.surface.us_many((np.asarray(seqs, dtype=np.float64), context), decode_features(seqs, context))


@dataclass(frozen=True, slots=True)
class JointTable:
    """A layer's attention in one kernel, over (chunk tokens, cached tokens before it, decode_seqs, mean context).

    From about `knee_keys` keys of decodes on, the KV of one head no longer stays in the L2 cache until the next query
    head of its group comes round: it is read again for each.
    """

    surface: Surface
    knee_keys: float


@dataclass(frozen=True, slots=True)
class PrefillTable:
    """A layer's attention for prompt chunks, over (prefill_seqs, tokens of each); decodes are added to it.

    In `windowed` of the layers (a share) a query sees at most `window` tokens. Each token cached before a chunk costs
    as much as `cached_pairs` (query, key) pairs more: of latent attention, whose keys and values a chunk projects up
    from the cache again.
    """

    surface: Surface
    window: float = inf
    windowed: float = 0.0
    cached_pairs: float = 0.0


@dataclass(frozen=True, slots=True)
class Attention:
    """What is known of attention.

    Where prompts and decodes were measured apart, `launch_us` is counted once, and decodes take `beside` times as long
    beside prompts as alone.
    """

    decode: DecodeTable
    prompt: JointTable | PrefillTable
    launch_us: float = 0.0
    beside: float = 1.0


def joint_us(attention: Attention, shape: StepShape) -> float:
    """Microseconds of a layer's attention in a step with prompt chunks, equal decode contexts assumed."""
    seqs = shape.decode_seqs
    context = shape.decode_context / seqs if seqs else 0.0
    chunks, tokens = shape.prefill_seqs, shape.prefill_tokens
    pairs: float = shape.prefill_pairs
    prompt = attention.prompt
    if isinstance(prompt, PrefillTable):
        if prompt.windowed:
            pairs -= prompt.windowed * max(0.0, pairs - windowed_pairs(chunks, tokens, pairs, prompt.window))
        if prompt.cached_pairs:
            pairs += prompt.cached_pairs * max(0, shape.prefill_context - tokens)
        features = prompt_features(chunks, tokens, pairs, shape.prefill_longest, 0, 0.0)
        us = prompt.surface.us((chunks, tokens / chunks), features)
        if not seqs:
            return us
        return us + attention.beside * max(0.0, attention.decode.us(seqs, context) - attention.launch_us)
    cached = max(0.0, (pairs - 0.5 * tokens * (tokens + 1)) / tokens)
    features = prompt_features(chunks, tokens, pairs, shape.prefill_longest, seqs, context, prompt.knee_keys)
    return prompt.surface.us((tokens, cached, seqs, context), features)


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
