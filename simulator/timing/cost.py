"""The seam between a step and its seconds: what a cost model is told, and what it answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StepShape(NamedTuple):
    """What a step computes, in counts. All of them include padding, which costs as much as real tokens.

    `*_context` are KV tokens after the step, summed over the requests named. `prefill_pairs` is the number of
    (query, key) pairs that causal attention visits in the prompt chunks: for a chunk of n tokens behind c computed
    ones, n * c + n * (n + 1) / 2. A named tuple, because one is made for every step.

    `decode_longest` is the longest of the contexts that decode_context sums up, and `decode_squares` the sum of their
    squares: both 0 where the cost model does not ask for them (`CostModel`). `prefill_longest` is the longest context
    of a prompt chunk.
    """

    decode_seqs: int
    decode_context: int
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    prefill_context: int = 0
    prefill_pairs: int = 0
    decode_longest: int = 0
    decode_squares: int = 0
    prefill_longest: int = 0

    @property
    def tokens(self) -> int:
        return self.decode_seqs + self.prefill_tokens

    @property
    def context(self) -> int:
        return self.decode_context + self.prefill_context

    def later(self, steps: int) -> StepShape:
        """A step of decodes alone, so many steps later: every context has grown by one a step."""
        seqs, context, _, _, _, _, longest, squares, _ = self
        if longest:
            longest, squares = longest + steps, squares + steps * (2 * context + steps * seqs)
        return StepShape(seqs, context + steps * seqs, decode_longest=longest, decode_squares=squares)


class CostModel(Protocol):
    """Seconds for a step. Both members must agree to the last bit: the second is the first, many times over.

    Two more are optional. A class variable `wants_context_stats = True` asks for `decode_longest` and `decode_squares`,
    which cost the engine a little to keep. `remarks(rows: RowColumns) -> Sequence[str]` is asked after a run what a
    person should know about its steps, such as how many of them lie outside of what was measured.
    """

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step; 0.0 for a step without tokens."""

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        """Seconds of each of `repeat` successive steps of the same `shape.decode_seqs` > 0 decoding requests.

        The first is of that shape, in which nobody prefills. Element i equals `step_s(shape.later(i))`, bit for bit.
        """
