"""The seam between a step and its seconds: the shape that a cost model is given, and the cost models' protocol."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError

Ints = NDArray[np.int64]


class StepShape(NamedTuple):
    """Counts of a step's work. All of them include padding, which costs as much as real tokens.

    `*_context` are KV tokens after the step, summed over the requests named. `prefill_pairs` is the number of
    (query, key) pairs that causal attention visits in the prompt chunks: for a chunk of n tokens behind c computed
    ones, n * c + n * (n + 1) / 2. A named tuple, because one is made for every step.

    `decode_longest` is the longest of the contexts that `decode_context` sums up, `decode_squares` the sum of their
    squares: both 0 unless the cost model asks for them. `prefill_longest` is the longest context of a prompt chunk.

    Speculative decoding alone has the three after these: `draft_seqs` of the decodes verify `draft_tokens` drafts
    together, which are query tokens beyond one for each decode and are part of its context; the drafter proposes
    `drafted_tokens` at the end of the step. LoRA alone has the three after that: the adapters in use, the step's tokens
    that one of them computes, and the adapters that are copied to the device before it. `embeddings` are those that
    the encoder computes for images.
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
    draft_seqs: int = 0
    draft_tokens: int = 0
    drafted_tokens: int = 0
    loras: int = 0
    lora_tokens: int = 0
    loaded_loras: int = 0
    embeddings: int = 0

    @property
    def tokens(self) -> int:
        return self.decode_seqs + self.prefill_tokens + self.draft_tokens

    @property
    def context(self) -> int:
        return self.decode_context + self.prefill_context

    def later(self, steps: int) -> StepShape:
        """The shape of a decode step so many steps later, without drafts: every context grows by a token a step."""
        seqs, context, _, _, _, _, longest, squares, *_, loras, lora_tokens, _, _ = self
        if longest:
            longest, squares = longest + steps, squares + steps * (2 * context + steps * seqs)
        context += steps * seqs
        return StepShape(seqs, context, 0, 0, 0, 0, longest, squares, 0, 0, 0, 0, loras, lora_tokens)


COUNTS = StepShape._fields[: StepShape._fields.index("draft_seqs")]
"""The fields that steps without drafts and adapters have."""


class StepCounts(Protocol):
    """Columns of a run's steps, as far as cost models look at them: a part of `simulator.results.records.RowColumns`.

    One entry a step, or a run of `repeat` equal decode steps; counts are those of the first of them.
    """

    @property
    def repeat(self) -> Ints: ...

    @property
    def decoding(self) -> Ints: ...

    @property
    def held(self) -> Ints: ...

    @property
    def prefill_tokens(self) -> Ints: ...

    @property
    def tokens(self) -> Ints: ...

    @property
    def context_tokens(self) -> Ints: ...


def check_seconds(of: object, called: str, *names: str) -> None:
    """Raise InputError for an attribute that is neither finite seconds of 0 or more nor None."""
    for name in names:
        value = getattr(of, name)
        if value is not None and not 0 <= value < inf:
            raise InputError(f"{called}: {name} must be 0 or more seconds, not {value}")


class CostModel(Protocol):
    """Seconds for a step. `step_s` and `decode_run_s` agree to the last bit: the second is the first, repeated."""

    @property
    def wants_context_stats(self) -> bool:
        """True if the model needs `decode_longest` and `decode_squares`, which the engine keeps at a small cost."""

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step; 0.0 for a step without tokens."""

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        """Seconds of each of `repeat` successive steps of the same `shape.decode_seqs` > 0 decoding requests.

        The first has that shape, which computes no prompts and no drafts. Element i equals `step_s(shape.later(i))`,
        bit for bit.
        """

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        """Sentences about a run's steps for its reader, such as how many lie outside of what was measured."""


class GroupCost(Protocol):
    """Seconds of a common step of data-parallel ranks."""

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        """Seconds of a common step, by each rank's shape; an idle rank's, of a dummy batch, has no token."""
