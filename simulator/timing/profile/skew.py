"""The extra cost of a batch of unequal contexts, compared with equal contexts of the same sum.

An attention kernel gives each sequence to a few blocks of threads; when the contexts differ, the longest are still
being read while the rest has finished. The extra is measured with batches of two lengths, and per key by which the
longest exceeds the mean: it then hardly depends on the mean.

Any batch is looked up as the two-length batch of the same mean, longest and variance: with a share s of long ones,
variance / (longest - mean)^2 = s / (1 - s). Both are exact in integers and do not change while the whole batch decodes,
so the extra is the same, to the bit, in every step of a run.
"""

from dataclasses import dataclass, field

from simulator.timing.cost import StepShape
from simulator.timing.profile.lookup import CountedSkew
from simulator.timing.profile.surface import SurfaceAxis


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
