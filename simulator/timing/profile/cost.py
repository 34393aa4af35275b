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

from simulator.errors import InputError
from simulator.timing.cost import StepCounts, StepShape
from simulator.timing.profile.arithmetic import Lines, PlainCurve, curves_us, run_on_lines
from simulator.timing.profile.decode_rows import DecodeRows
from simulator.timing.profile.joint import joint_us
from simulator.timing.profile.remarks import remarks
from simulator.timing.profile.schema import Curves, Profile


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
class ProfileCost:
    """Step costs by a profile. Implements CostModel."""

    profile: Profile
    options: Options = Options()
    _decodes: DecodeRows = field(init=False, repr=False, compare=False)
    _layer_curves: list[PlainCurve] = field(init=False, repr=False, compare=False)
    _step_curves: list[PlainCurve] = field(init=False, repr=False, compare=False)
    _row_curves: list[PlainCurve] = field(init=False, repr=False, compare=False)
    _rows: dict[int, tuple[float, Lines]] = field(init=False, repr=False, compare=False, default_factory=dict)
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
        profile = self.profile
        derived = {
            "_decodes": DecodeRows(profile.attention.decode, profile.layers),
            "_layer_curves": _plain(profile.layer_curves),
            "_step_curves": _plain(profile.step_curves),
            "_row_curves": _plain(profile.row_curves),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # the way to a derived field of a frozen dataclass

    @property
    def wants_context_stats(self) -> bool:
        return self.options.skew and self.profile.skew is not None

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
            row = self._rows[seqs] = (self._of_tokens_s(seqs) + self._of_sampled_s(seqs), self._decodes.lines(seqs))
        fixed_s, lines = row
        skew = self.profile.skew
        if skew is not None and self.options.skew:
            fixed_s += self.profile.layers * skew.us(shape) * 1e-6  # the same in every step of the run
        return run_on_lines(lines, fixed_s, context, seqs, repeat)

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
            padded = self.padded(tokens)
            seconds = self._work_out(tokens) if padded == tokens else self._of_tokens_s(padded)
            self._tokens_s[tokens] = seconds
        return seconds

    def _work_out(self, tokens: int) -> float:
        profile = self.profile
        us = curves_us(self._layer_curves, profile.layers, tokens) + curves_us(self._step_curves, 1.0, tokens)
        if profile.experts is not None:
            us += profile.layers * profile.experts.us(tokens)
        if profile.all_reduce is not None and self.options.all_reduce:
            us += profile.all_reduce.at(tokens)
        host_s = self.options.host_s
        return us * 1e-6 + (profile.host_s if host_s is None else host_s)

    def _of_sampled_s(self, rows: int) -> float:
        """Seconds of head and sampler for so many rows, and what the host does for each."""
        seconds = self._sampled_s.get(rows)
        if seconds is None:
            us = curves_us(self._row_curves, 1.0, rows)
            given = self.options.host_per_seq_s
            host_s = self.profile.host_per_seq_s if given is None else given
            seconds = self._sampled_s[rows] = us * 1e-6 + host_s * rows
        return seconds


def _plain(curves: Curves) -> list[PlainCurve]:
    return [curve.plain() for curve in curves.values()]


def capture_sizes(most: int) -> list[int]:
    """The batch sizes for which vLLM captures CUDA graphs, up to `most` tokens (vllm/config/vllm.py, 0.19)."""
    sizes = [*(1, 2, 4), *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)]
    return [size for size in sizes if size <= most]
