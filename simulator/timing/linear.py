"""The linear step cost: three coefficients, from a fit or a guess."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.errors import InputError
from simulator.timing.cost import StepCounts, StepShape

VECTOR_FROM = 64
"""Steps from which an array is faster than a list comprehension; the numbers are the same."""


@dataclass(frozen=True, slots=True)
class Linear:
    """step_s = base_s + per_token_s * scheduled_tokens + per_context_token_s * context_tokens, left to right.

    `scheduled_tokens` are those computed in the step, `context_tokens` the KV tokens of the same requests after it,
    both with padding. A step without tokens costs 0. Coefficients are seconds, finite and not negative (InputError).
    """

    wants_context_stats = False

    base_s: float
    per_token_s: float = 0.0
    per_context_token_s: float = 0.0

    def __post_init__(self) -> None:
        for field in ("base_s", "per_token_s", "per_context_token_s"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"linear cost: {field} must be 0 or more seconds, not {value}")

    def step_s(self, shape: StepShape) -> float:
        tokens = shape.decode_seqs + shape.prefill_tokens
        if tokens <= 0:
            return 0.0
        context = shape.decode_context + shape.prefill_context
        return self.base_s + self.per_token_s * tokens + self.per_context_token_s * context

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        decode_seqs, decode_context = shape.decode_seqs, shape.decode_context
        return affine_run(
            self.base_s + self.per_token_s * decode_seqs, self.per_context_token_s, decode_context, decode_seqs, repeat
        )

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return ()


def affine_run(first: float, slope: float, start: int, step: int, repeat: int) -> list[float]:
    """`first + slope * x` for x = start, start + step, ..., `repeat` of them; each rounded as Python rounds it.

    IEEE 754 doubles on both paths, and numpy fuses no multiplication with an addition: the paths agree to the bit, as
    long as x stays below 2**53.
    """
    if repeat == 1:
        return [first + slope * start]
    stop = start + step * repeat
    if repeat < VECTOR_FROM:
        return [first + slope * x for x in range(start, stop, step)]
    run: list[float] = (first + slope * np.arange(start, stop, step)).tolist()
    return run
