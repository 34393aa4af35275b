"""The cost model of a profile: the kernels of a step, added up.

    step_s = host + dense(tokens) + rows(sampled rows) + experts(tokens) + all-reduce(tokens)
             + layers x (attention of all its requests together + what unequal contexts cost)

A step of decodes alone takes its attention from a row that is worked out once for each number of decodes: straight
lines over the mean context, so that a run of steps is a few arithmetic progressions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from simulator.errors import InputError
from simulator.timing.affine import affine_run
from simulator.timing.cost import StepCounts, StepShape
from simulator.timing.profile.remarks import remarks
from simulator.timing.profile.schema import Profile
from simulator.timing.profile.step import joint_us

KNOTS_PER_OCTAVE = 8
LONGEST_KNOT = 2.0**21
"""A decode row has knots up to this mean context; beyond, the last line goes on."""
ROWS_TOGETHER = 32
"""Decode rows that are tabulated at once."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a scenario may say about a profile's server, beside the profile.

    `host_s` and `host_per_seq_s` replace the profile's seconds by which the host holds up a step, and those for each
    request in it (`simulator.servers` has those of real engines).
    `cuda_graphs` False computes batches at their size, True pads them to the sizes for which vLLM captures graphs up to
    `max_capture_tokens`. `skew` and `all_reduce` leave these parts out when False: to see what they amount to.
    """

    host_s: float | None = None
    host_per_seq_s: float | None = None
    cuda_graphs: bool = True
    max_capture_tokens: int = 512
    skew: bool = True
    all_reduce: bool = True


@dataclass(frozen=True, slots=True)
class _Row:
    """Steps of decodes alone, for one number of them: seconds are first[i] + slope[i] x context, up to bounds[i]."""

    fixed_s: float
    bounds: list[float]
    first_s: list[float]
    slope_s: list[float]


@dataclass(frozen=True, slots=True)
class ProfileCost:
    """Step costs by a profile. Implements CostModel."""

    wants_context_stats = True

    profile: Profile
    options: Options = Options()
    _rows: dict[int, _Row] = field(init=False, repr=False, compare=False, default_factory=dict)
    _tokens_s: dict[int, float] = field(init=False, repr=False, compare=False, default_factory=dict)
    _sampled_s: dict[int, float] = field(init=False, repr=False, compare=False, default_factory=dict)
    _sizes: list[int] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        for name in ("host_s", "host_per_seq_s"):
            given = getattr(self.options, name)
            if given is not None and not 0 <= given < inf:
                raise InputError(f"profile cost: {name} must be 0 or more seconds, not {given}")
        if self.options.cuda_graphs:
            self._sizes.extend(capture_sizes(self.options.max_capture_tokens))

    def step_s(self, shape: StepShape) -> float:
        tokens = shape.decode_seqs + shape.prefill_tokens
        if tokens <= 0:
            return 0.0
        if shape.prefill_tokens == 0:
            return self.decode_run_s(shape, 1)[0]
        profile = self.profile
        attention_us = joint_us(profile.attention, shape)
        if self.options.skew and profile.skew is not None:
            attention_us += profile.skew.us(shape)
        fixed_s = self._of_tokens_s(tokens) + self._of_sampled_s(shape.decode_seqs + shape.prefill_seqs)
        return fixed_s + profile.layers * attention_us * 1e-6

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        seqs, context = shape.decode_seqs, shape.decode_context
        row = self._rows.get(seqs)
        if row is None:
            self._tabulate(seqs)
            row = self._rows[seqs]
        fixed_s = row.fixed_s
        skew = self.profile.skew
        if skew is not None and self.options.skew:
            fixed_s += self.profile.layers * skew.us(shape) * 1e-6  # the same in every step of the run
        bounds = row.bounds
        place = bisect_right(bounds, context)
        run: list[float] = []
        while True:
            # Those before the next bound lie on one line.
            left = bounds[place] - context
            steps = repeat if left > seqs * repeat else int(-(-left // seqs))
            line = affine_run(fixed_s + row.first_s[place], row.slope_s[place], context, seqs, steps)
            if steps == repeat:
                return run + line if run else line
            run += line
            context += seqs * steps
            repeat -= steps
            place = bisect_right(bounds, context)

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return remarks(self.profile, steps)

    def padded(self, tokens: int) -> int:
        """The tokens that are computed for `tokens`: the next size for which a graph was captured, if there is one."""
        sizes = self._sizes
        return sizes[bisect_right(sizes, tokens - 1)] if sizes and tokens <= sizes[-1] else tokens

    def _of_tokens_s(self, tokens: int) -> float:
        """Seconds of all that depends on the number of tokens alone."""
        seconds = self._tokens_s.get(tokens)
        if seconds is None:
            seconds = self._tokens_s[tokens] = self._work_out(tokens)
        return seconds

    def _work_out(self, tokens: int) -> float:
        profile = self.profile
        padded = self.padded(tokens)
        us = sum(profile.layers * curve.at(padded) for curve in profile.layer_curves.values())
        us += sum(curve.at(padded) for curve in profile.step_curves.values())
        if profile.experts is not None:
            us += profile.layers * profile.experts.us(padded)
        if profile.all_reduce is not None and self.options.all_reduce:
            us += profile.all_reduce.at(padded)
        host_s = self.options.host_s
        return us * 1e-6 + (profile.host_s if host_s is None else host_s)

    def _of_sampled_s(self, rows: int) -> float:
        """Seconds of head and sampler for so many rows, and what the host does for each."""
        seconds = self._sampled_s.get(rows)
        if seconds is None:
            us = sum(curve.at(rows) for curve in self.profile.row_curves.values())
            given = self.options.host_per_seq_s
            host_s = self.profile.host_per_seq_s if given is None else given
            seconds = self._sampled_s[rows] = us * 1e-6 + host_s * rows
        return seconds

    def _tabulate(self, seqs: int) -> None:
        """Work out the rows of so many decodes and of their neighbours, which a batch comes to next.

        Straight lines between knots that are close enough to hide it. Together they take an eighth of the time.
        """
        decode = self.profile.attention.decode
        octaves = np.log2(LONGEST_KNOT)
        knots = np.unique(np.round(2.0 ** np.linspace(0.0, octaves, int(octaves * KNOTS_PER_OCTAVE) + 1)))
        knots = np.union1d(knots, np.asarray(decode.surface.axes[1].values)[1:])
        first = (seqs - 1) // ROWS_TOGETHER * ROWS_TOGETHER + 1
        together = range(first, first + ROWS_TOGETHER)
        column = np.array(together, dtype=np.float64)[:, np.newaxis]
        seconds = self.profile.layers * 1e-6 * decode.us_many(column, knots)
        slope = np.diff(seconds) / np.diff(knots) / column  # for a token of context
        at_nought = seconds[:, :-1] - slope * knots[:-1] * column
        bounds = knots[1:-1] * column
        for row, of in enumerate(together):
            self._rows[of] = _Row(
                fixed_s=self._of_tokens_s(of) + self._of_sampled_s(of),
                bounds=[*bounds[row].tolist(), inf],
                first_s=at_nought[row].tolist(),
                slope_s=slope[row].tolist(),
            )


def capture_sizes(most: int) -> list[int]:
    """The batch sizes for which vLLM captures CUDA graphs, up to `most` tokens (vllm/config/vllm.py, 0.19)."""
    sizes = [*(1, 2, 4), *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)]
    return [size for size in sizes if size <= most]
