"""The seam between a step and its seconds: what a cost model is told, and what it answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StepShape(NamedTuple):
    """What a step computes, in counts. All of them include padding, which costs as much as real tokens.

    `*_context` are KV tokens after the step, summed over the requests named. `prefill_pairs` is the number of
    (query, key) pairs that causal attention visits in the prompt chunks: for a chunk of n tokens behind c computed
    ones, n * c + n * (n + 1) / 2. A named tuple, because one is made for every step.
    """

    decode_seqs: int
    decode_context: int
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    prefill_context: int = 0
    prefill_pairs: int = 0

    @property
    def tokens(self) -> int:
        return self.decode_seqs + self.prefill_tokens

    @property
    def context(self) -> int:
        return self.decode_context + self.prefill_context


class CostModel(Protocol):
    """Seconds for a step. Both members must agree to the last bit: the second is the first, many times over."""

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step; 0.0 for a step without tokens."""

    def decode_run_s(self, decode_seqs: int, decode_context: int, repeat: int) -> list[float]:
        """Seconds of each of `repeat` successive steps of the same `decode_seqs` > 0 decoding requests.

        The first has `decode_context` KV tokens after the step, every next one `decode_seqs` more. Element i equals
        `step_s(StepShape(decode_seqs, decode_context + i * decode_seqs))`, bit for bit.
        """
