"""What is believed of a step's coefficients before and after steps were measured: a mean and a covariance.

    us = constant + sum(coefficient x feature)                    (the features of `calibration.steps`)

Before, the mean is the form fitted to what kernel tables or the roofline say of a grid of steps, and the covariance is
such that steps are as far off as measured servers were from their predictions: half of the variance is shared by all
coefficients (a server is quicker or slower in everything), half is each one's own; the costs of neighbouring batch
sizes move together. In 817 runs of 46 cells of engine, model, GPU and precision the two halves are equal. Measured
steps make a belief narrower by linear regression with normal errors; coefficients stay at 0 or above.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.rows import Table, make_table
from calibration.solvers import nnls
from calibration.steps import COUNTS_OF_TOKENS, TERMS, matrix, ramps
from simulator.timing.cost import COUNTS, StepShape
from simulator.timing.profile.physics import Physics
from simulator.timing.profile.surface import Array

Price = Callable[[StepShape], float]
"""Seconds of a step, without the host."""

NEIGHBOURS = 2.0  # doublings of tokens over which costs of batch sizes move together
LEAST = 0.05  # of a typical step: by at least so much may a part be off that the prior says costs nothing
SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 512, 2048, 8192, 32768)
PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Belief:
    """Coefficients in microseconds, the constant first, and their covariance.

    `form_error` is how far the form is from the prices that it was fitted to (a standard deviation of logarithms).
    """

    mean: Array
    covariance: Array
    form_error: float

    def us(self, table: Table) -> Array:
        """Expected microseconds of steps."""
        return np.asarray(matrix(table) @ self.mean)

    def log_sd(self, table: Table) -> Array:
        """Standard deviation of the logarithm of each step's time."""
        features = matrix(table)
        variance = np.einsum("ij,jk,ik->i", features, self.covariance, features)
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)) / (features @ self.mean))

    def given(self, table: Table, noise: Array) -> "Belief":
        """The belief after steps whose times are off by a fraction `noise` each."""
        scale, before, columns = self._columns(table, noise)
        off = np.hypot(noise, self.form_error) * table["us"]
        mean, _ = nnls(columns, np.concatenate([table["us"] / off, before @ (self.mean / scale)]))
        return replace(self.narrowed(table, noise), mean=mean * scale)

    def narrowed(self, table: Table, noise: Array) -> "Belief":
        """The belief after steps whose times are what is expected of them: as sure as `given`, and quicker."""
        scale, _, columns = self._columns(table, noise)
        return replace(self, covariance=np.linalg.inv(columns.T @ columns) * np.outer(scale, scale))

    def _columns(self, table: Table, noise: Array) -> tuple[Array, Array, Array]:
        """The coefficients' scale, the rows of what was believed, and these below those of the steps."""
        off = np.hypot(noise, self.form_error) * table["us"]
        scale = np.sqrt(np.diag(self.covariance))
        before = np.linalg.cholesky(np.linalg.inv(self.covariance / np.outer(scale, scale))).T
        return scale, before, np.vstack([matrix(table) * scale / off[:, None], before])

    def physics(self) -> Physics:
        """The coefficients as a profile's physics."""
        names = (*(ramps(COUNTS_OF_TOKENS)), *TERMS)
        values = [float(f"{value:.6g}") for value in self.mean]
        return Physics(values[0], tuple(zip(names, values[1:], strict=True)))


def believe(price: Price, spread: float, most_tokens: int, most_keys: float) -> Belief:
    """The belief before anything was measured.

    `spread` is by how much steps are off (a standard deviation of logarithms). The grid ends at steps of `most_tokens`
    and at as many KV tokens as the device holds.
    """
    table = grid(most_tokens, most_keys)
    shapes = (StepShape(*map(int, row)) for row in zip(*(table[name] for name in COUNTS), strict=True))
    us = 1e6 * np.array([price(shape) for shape in shapes])
    features = matrix(table)
    scale = np.maximum(np.quantile(features / us[:, None], 0.9, axis=0), 1e-12)
    mean, _ = nnls(features / us[:, None] / scale, np.ones(len(us)))
    mean = mean / scale
    error = float(np.quantile(np.abs(np.log(np.maximum(features @ mean, 1e-9) / us)), 0.68))
    part = np.maximum(mean, LEAST / scale)
    shared, own = np.outer(mean, mean), np.outer(part, part) * _together(len(mean))
    variance = [np.einsum("ij,jk,ik->i", features, each, features) / (features @ mean) ** 2 for each in (shared, own)]
    half = [spread**2 / 2.0 / float(np.median(each)) for each in variance]
    return Belief(mean, half[0] * shared + half[1] * own, error)


def _together(size: int) -> Array:
    """Correlations of the coefficients' own parts: of batch sizes by their distance, of all others none."""
    places = np.arange(size)
    found = np.exp(-np.abs(places[:, None] - places[None, :]) / NEIGHBOURS)
    sizes = places <= len(COUNTS_OF_TOKENS)
    return np.where(np.outer(sizes, sizes), found, np.eye(size))


def grid(most_tokens: int, most_keys: float) -> Table:
    """Steps of every kind: decodes, prompts fresh and behind cached tokens, and both."""
    rows: list[dict[str, float]] = []
    decodes = [(seqs, context) for seqs in SEQS for context in CONTEXTS if seqs * context <= most_keys]
    prompts = [tokens for tokens in PROMPTS if tokens <= most_tokens]
    rows += [shape_of(seqs, context) for seqs, context in decodes]
    rows += [shape_of(0, 0, 1, tokens, cached) for tokens in prompts for cached in (0, 8192)]
    rows += [shape_of(0, 0, 4, tokens // 4) for tokens in prompts if tokens >= 64]
    rows += [shape_of(seqs, context, 1, tokens) for seqs, context in decodes[::3] for tokens in prompts[3::2]]
    return table_of(rows)


def shape_of(seqs: int, context: int, chunks: int = 0, tokens: int = 0, cached: int = 0) -> dict[str, float]:
    """The counts of decodes of one context, and of equal prompt chunks behind cached tokens."""
    return {
        "decode_seqs": seqs, "decode_context": seqs * context, "decode_longest": context if seqs else 0,
        "decode_squares": seqs * context**2, "prefill_seqs": chunks, "prefill_tokens": chunks * tokens,
        "prefill_context": chunks * (tokens + cached), "prefill_longest": tokens + cached if chunks else 0,
        "prefill_pairs": chunks * (tokens * cached + tokens * (tokens + 1) // 2),
    }  # fmt: skip


def table_of(rows: Sequence[dict[str, float]]) -> Table:
    """A table of steps whose times are not known yet."""
    return make_table("step", {name: [row.get(name, 1.0) for row in rows] for name in (*COUNTS, "us")})
