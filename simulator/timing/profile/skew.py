"""What a batch of unequal contexts costs beyond one of equal contexts with the same sum.

An attention kernel gives each sequence to a few blocks of threads; when the contexts differ, the longest are still
being read while the rest has finished. The extra is measured with batches of two lengths, and per key by which the
longest exceeds the mean: it then hardly depends on the mean.

Any batch is looked up as the two-length batch of the same mean, longest and variance: with a share s of long ones,
variance / (longest - mean)^2 = s / (1 - s). Both are exact in integers and do not change while the whole batch decodes,
so the extra is the same, to the bit, in every step of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.timing.cost import StepShape
from simulator.timing.profile.arithmetic import mix, on_two_axes
from simulator.timing.profile.surface import Axis


@dataclass(frozen=True, slots=True)
class Skew:
    """Extra microseconds per key of (longest - mean), by number of decodes and share of long ones; a layer's.

    `decode` is for steps of decodes alone; `mixed`, for steps with prompt chunks, has the mean context as a third
    axis. Tables are flat, the last axis fastest.
    """

    seqs: Axis
    share: Axis
    context: Axis
    decode: tuple[float, ...]
    mixed: tuple[float, ...]

    def us(self, shape: StepShape) -> float:
        """Microseconds to add to a layer's attention; 0 for equal contexts, or where the longest is not known."""
        seqs, context, longest = shape.decode_seqs, shape.decode_context, shape.decode_longest
        excess = seqs * longest - context  # seqs x (longest - mean)
        if seqs < 2 or longest == 0 or excess <= 0:
            return 0.0
        spread = (seqs * shape.decode_squares - context * context) / (excess * excess)
        share = spread / (1.0 + spread)
        rows, columns = self.seqs, self.share
        if shape.prefill_tokens == 0:
            return on_two_axes(self.decode, rows.knots, columns.knots, seqs, share) * excess / seqs
        layers = self.context
        (i, down), (j, right) = rows.find(seqs), columns.find(share)
        k, deep = layers.find(context / seqs / (1.0 + 3.0 * share))
        width, depth = len(columns.places), len(layers.places)
        cells = ((width * depth, down), (depth, right), (1, deep))
        return mix(self.mixed, (i * width + j) * depth + k, cells, 3) * excess / seqs
