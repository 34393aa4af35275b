"""Requests to validate with where no trace is at hand: lengths and gaps as two published traces have them.

Drawn from the traces' quantiles, not copied from them; lengths are independent of each other, as they nearly are there
(correlation -0.11 and 0.07).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.workload import Floats, Ints, Workload

_PERCENTILES = (0, 5, 10, 25, 50, 75, 90, 95, 99, 100)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Quantiles of prompts and answers, requests a second, and the variation of the gaps (of gamma distribution)."""

    source: str
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    rate: float
    variation: float

    def requests(self, count: int, seed: int = 0, *, longest: int | None = None, rate: float | None = None) -> Workload:
        """So many requests; prompts and answers scaled down where their largest together would be over `longest`."""
        random = np.random.default_rng(seed)
        lengths = [self._drawn(table, random, count) for table in (self.input_tokens, self.output_tokens)]
        most = self.input_tokens[-1] + self.output_tokens[-1]
        share = 1.0 if longest is None else min(1.0, longest / most)
        inputs, outputs = (np.maximum(1, (drawn * share).astype(np.int64)) for drawn in lengths)
        shape = 1 / self.variation**2
        gaps = random.gamma(shape, 1 / (shape * (rate or self.rate)), count)
        return _workload(np.cumsum(gaps) - gaps[0], inputs, outputs)

    @staticmethod
    def _drawn(table: tuple[int, ...], random: np.random.Generator, count: int) -> Floats:
        """Between the quantiles, lengths are spread evenly on a logarithmic scale."""
        return np.exp(np.interp(random.uniform(0, 100, count), _PERCENTILES, np.log(table)))


TRAFFIC = {
    "azure-chat": Traffic(
        "Azure LLM inference trace 2023, conversation (Patel et al., Splitwise, ISCA 2024): 19,366 requests",
        (2, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050),
        (7, 41, 54, 85, 129, 395, 424, 451, 601, 1000),
        5.53,
        1.09,
    ),
    "long-context": Traffic(
        "Mooncake conversation trace (Qin et al., FAST 2025): 12,031 requests",
        (891, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 126195),
        (1, 10, 24, 156, 350, 472, 597, 698, 1118, 2000),
        3.40,
        3.03,
    ),
}


def _workload(arrival_s: Floats, input_tokens: Ints, output_tokens: Ints) -> Workload:
    count = len(arrival_s)
    nought = np.zeros(count, dtype=np.int64)
    cap = np.full(count, int(output_tokens.max()), dtype=np.int64)
    return Workload(arrival_s, input_tokens, output_tokens, cap, nought, nought)
