"""Tables of a layer's attention kernels, and how their times add up."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import numpy as np

from simulator.timing.profile.counts import DECODE_COUNTS, PROMPT_COUNTS, decode_counts
from simulator.timing.profile.lookup import Lookup
from simulator.timing.profile.physics import decode_features
from simulator.timing.profile.surface import Array, Surface


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A surface, and the lookup of one place in it, given these counts of its physics."""

    counts: ClassVar[Sequence[str]]

    surface: Surface
    lookup: Lookup = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lookup", self.surface.lookup(self.counts))


@dataclass(frozen=True, slots=True)
class DecodeTable(LookupTable):
    """A layer's attention for decodes alone, over (decode_seqs, mean context)."""

    counts = DECODE_COUNTS

    def us(self, seqs: int, context: float) -> float:
        return self.lookup.us_of_count(seqs, context, decode_counts(seqs, context))

    def us_many(self, seqs: float | Array, context: Array) -> Array:
        return self.surface.us_many((np.asarray(seqs, dtype=np.float64), context), decode_features(seqs, context))


@dataclass(frozen=True, slots=True)
class JointTable(LookupTable):
    """A layer's attention in one kernel, over (chunk tokens, cached tokens before it, decode_seqs, mean context).

    From about `knee_keys` keys of decodes on, the KV of one head no longer stays in the L2 cache until the next query
    head of its group comes round: it is read again for each.
    """

    counts = PROMPT_COUNTS

    knee_keys: float


@dataclass(frozen=True, slots=True)
class PrefillTable(LookupTable):
    """A layer's attention for prompt chunks, over (prefill_seqs, tokens of each); decodes are added to it.

    In `windowed` of the layers (a share) a query sees at most `window` tokens. Each token cached before a chunk costs
    as much as `cached_pairs` (query, key) pairs more: of latent attention, whose keys and values a chunk projects up
    from the cache again.
    """

    counts = PROMPT_COUNTS

    window: float = inf
    windowed: float = 0.0
    cached_pairs: float = 0.0


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of a layer."""

    decode: DecodeTable
    prompt: JointTable | PrefillTable
    launch_us: float = 0.0  # counted once where prompts and decodes were measured apart
    beside: float = 1.0  # decodes take so many times as long beside prompts as alone, where measured apart
