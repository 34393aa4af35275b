"""The linear step cost: a few coefficients, from a fit or a guess."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.timing.arithmetic import affine_run
from simulator.timing.cost import StepCounts, StepFloor, StepShape, check_seconds


@dataclass(frozen=True, slots=True)
class Linear:
    """step_s = base_s + per_token_s * scheduled_tokens + per_context_token_s * context_tokens, left to right.

    `scheduled_tokens` are those computed in the step, `context_tokens` the KV tokens of the same requests after it,
    both with padding. A step without tokens costs 0. Drafts are scheduled tokens of the step that verifies them, and
    add `per_drafted_token_s` each in the step at whose end they are proposed. Coefficients are seconds, finite and not
    negative (InputError).
    """

    wants_context_stats = False

    base_s: float
    per_token_s: float = 0.0
    per_context_token_s: float = 0.0
    per_drafted_token_s: float = 0.0

    def __post_init__(self) -> None:
        check_seconds(self, "linear cost", "base_s", "per_token_s", "per_context_token_s", "per_drafted_token_s")

    def step_s(self, shape: StepShape) -> float:
        tokens = shape.decode_seqs + shape.prefill_tokens + shape.draft_tokens
        if tokens <= 0:
            return 0.0
        context = shape.decode_context + shape.prefill_context
        seconds = self.base_s + self.per_token_s * tokens + self.per_context_token_s * context
        return seconds + self.per_drafted_token_s * shape.drafted_tokens if shape.drafted_tokens else seconds

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        decode_seqs, decode_context = shape.decode_seqs, shape.decode_context
        return affine_run(
            self.base_s + self.per_token_s * decode_seqs, self.per_context_token_s, decode_context, decode_seqs, repeat
        )

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return ()

    def floors(self, most_tokens: int) -> list[StepFloor]:
        """The model itself, which is linear."""
        context = self.per_context_token_s
        return [StepFloor(self.base_s, self.per_token_s, 0.0, context, context)]
