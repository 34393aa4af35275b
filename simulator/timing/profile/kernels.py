"""The kernels of a layer: attention, the experts of a mixture, and what unequal contexts cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np

from simulator.timing.arithmetic import DECODE_COUNTS, PROMPT_COUNTS, CountedSkew, Lookup, decode_counts
from simulator.timing.cost import StepShape
from simulator.timing.profile.surface import Array, Curve, Surface, SurfaceAxis, decode_features

# Attention: tables of its kernels, and how their times add up.


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


# The experts of a mixture: their cost depends on the tokens, and on how many experts these activate.


@dataclass(frozen=True, slots=True)
class Experts(LookupTable):
    """A layer's routed experts over (tokens, activated experts), of which each token asks for `top_k`."""

    counts = ("tokens", "activated")

    experts: int
    top_k: int

    def activated(self, tokens: float) -> float:
        """Experts that so many tokens ask for when each chooses evenly: E (1 - (1 - k / E)^tokens)."""
        missed: float = (1.0 - self.top_k / self.experts) ** tokens
        return self.experts * (1.0 - missed)

    def us(self, tokens: float) -> float:
        place = (tokens, self.activated(tokens))
        return self.lookup.us(place, place)

    def shared_us(self, tokens: float, ranks: int) -> float:
        """Microseconds of a rank's even share of the experts, for its share of the (token, expert) pairs."""
        place = (tokens / ranks, self.activated(tokens) / ranks)
        return self.lookup.us(place, place)


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """A layer's routed experts over tokens, the mean of all layers: a `share` of them has experts.

    `alone` are the times of experts that `width_ranks` GPUs divide by their width; `shared` those of a GPU that holds
    whole experts, one part in so many of them, over the tokens of all these GPUs.
    """

    alone: Curve
    share: float
    width_ranks: int
    shared: Mapping[int, Curve]

    def us(self, tokens: float) -> float:
        return self.share * self.alone.at(tokens)

    def shared_us(self, tokens: float, ranks: int) -> float:
        """Microseconds on a GPU where all GPUs of `ranks` data-parallel ranks share the experts.

        A number of GPUs that does not divide the experts, or is beyond those that were asked of the tables, is as the
        next smaller one with as many tokens for each GPU: that holds an expert or a few more.
        """
        gpus = ranks * self.width_ranks
        known = self._known(gpus)
        assert known is not None  # `refusal` was asked
        return self.share * self.shared[known].at(tokens * known / gpus if known != gpus else tokens)

    def reached_us(self, tokens: float, ranks: int, copies: int) -> float:
        """As `shared_us`, where a token reaches only the ranks of its `copies` experts, drawn evenly.

        A further token costs a GPU with few of the experts as much as if it had none: so much is not due. That slope
        holds some work of experts too, so a GPU takes at least the time of the tokens that reach it.
        """
        fewest = self.shared[max(self.shared)]
        unreached = tokens * (1.0 - 1.0 / ranks) ** copies
        left_us = self.shared_us(tokens, ranks) - self.share * unreached * fewest.us_beyond
        return max(left_us, self.shared_us(tokens - unreached, ranks))

    def refusal(self, ranks: int) -> str | None:
        """Why so many data-parallel ranks cannot share the experts; None where they can."""
        gpus = ranks * self.width_ranks
        if self._known(gpus) is not None:
            return None
        there = ", ".join(map(str, self.shared)) or "none"
        return f"no times of experts that {gpus} GPUs share (measured or near enough: {there})"

    def _known(self, gpus: int) -> int | None:
        """That number of GPUs, or the next smaller one whose times are known."""
        return gpus if gpus in self.shared else max((each for each in self.shared if each < gpus), default=None)


def expert_features(tokens: Any, activated: Any) -> dict[str, Any]:
    """Counts of a layer's experts, as numbers or arrays."""
    return {"tokens": tokens, "activated": activated}


# The extra cost of a batch of unequal contexts, compared with equal contexts of the same sum.
#
# An attention kernel gives each sequence to a few blocks of threads; when the contexts differ, the longest are
# still being read while the rest has finished. The extra is measured with batches of two lengths, and per key by
# which the longest exceeds the mean: it then hardly depends on the mean.
#
# Any batch is looked up as the two-length batch of the same mean, longest and variance: with a share s of long
# ones, variance / (longest - mean)^2 = s / (1 - s). Both are exact in integers and do not change while the whole
# batch decodes, so the extra is the same, to the bit, in every step of a run.


@dataclass(frozen=True, slots=True)
class Skew:
    """Extra microseconds per key of (longest - mean), by number of decodes and share of long ones; a layer's.

    `decode` is for steps of decodes alone; `mixed`, for steps with prompt chunks, has the mean context as a third
    axis. Tables are flat, the last axis fastest.
    """

    seqs: SurfaceAxis
    share: SurfaceAxis
    context: SurfaceAxis
    decode: tuple[float, ...]
    mixed: tuple[float, ...]

    counted: CountedSkew = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        axes = (self.seqs.knots, self.share.knots, self.context.knots)
        object.__setattr__(self, "counted", CountedSkew(axes, self.decode, self.mixed))

    def us(self, shape: StepShape) -> float:
        """Microseconds to add to a layer's attention; 0 for equal contexts, or where the longest is not known."""
        seqs, context, _, prefill_tokens, _, _, longest, squares, _, _, drafts, _, _, _, _, _ = shape
        return self.counted.us(seqs, context, longest, squares, prefill_tokens + drafts == 0)
