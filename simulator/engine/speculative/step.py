"""A step with drafts: what it schedules, and its shape."""

from bisect import bisect_left
from collections.abc import Sequence

from simulator.engine.in_flight import OverlappedInFlight
from simulator.engine.speculative.request import DraftingRequest
from simulator.engine.state import ReplicaState
from simulator.plan import StepPlan
from simulator.request_state import DECODING
from simulator.timing.cost import StepShape


class Scheduled:
    """A request's part of a step. `accepted` of its `drafts` are; the padding of an admission never is."""

    __slots__ = (
        "accepted", "admitted", "computed", "drafts", "is_prompt", "live", "padded", "proposed", "samples", "tokens",
    )  # fmt: skip

    def __init__(self, live: DraftingRequest, tokens: int, drafts: int, *, padded: bool) -> None:
        self.live = live
        self.is_prompt = live.status is not DECODING
        self.admitted = False
        self.computed = live.base_computed  # before the step
        self.tokens = tokens
        self.drafts = drafts
        self.padded = padded
        self.samples = False
        self.accepted = 0
        self.proposed = 0  # drafts for its next step


class VerifyRun:
    """Steps behind the first of a run. All sequences of steps begin with the second step of the run.

    `accepted` has a list a request, with an entry a step; `growing` the requests, by their place, that take blocks in a
    step, with how many; `reserved` their `reserved_tokens` then; `used` the blocks in use.
    """

    __slots__ = ("accepted", "growing", "lives", "reserved", "shapes", "used")

    def __init__(self, lives: Sequence[DraftingRequest]) -> None:
        self.lives = lives
        self.accepted: list[list[int]] = [[] for _ in lives]
        self.growing: list[list[tuple[int, int]]] = []
        self.reserved: list[list[int]] = []
        self.shapes: list[StepShape] = []
        self.used: list[int] = []


class VerifyStep(OverlappedInFlight):
    """A step that verifies drafts beside prompts; without asynchronous scheduling too.

    `next_drafts` are proposed for each request at its end, unless none of them would be verified (`skips_drafts`).
    """

    __slots__ = ("drafted", "emitted", "next_drafts", "overlaps", "record", "run", "scheduled", "skips_drafts")

    def __init__(
        self, state: ReplicaState, plan: StepPlan, now_s: float, scheduled: Sequence[Scheduled], waiting: int
    ) -> None:
        super().__init__(state, plan, now_s, StepShape(0, 0), 0, waiting)
        self.scheduled = scheduled
        self.next_drafts = 0
        self.skips_drafts = False
        self.overlaps = state.traits.async_scheduling
        self.run: VerifyRun | None = None
        self.record: dict[str, object] | None = None

    def look_s(self) -> float:
        """When the next plan is made."""
        return super().look_s() if self.overlaps else self.ends_s[-1]

    def planned_s(self, number: int) -> float:
        """When the step behind the first `number` steps is planned; 1 or more."""
        if self.overlaps:
            return self.ends_s[number - 2] if number > 1 else self.start_s
        return self.ends_s[number - 1]

    def steps_planned_by(self, at_s: float) -> int:
        """How many of the steps are planned before an arrival at `at_s` is seen."""
        return super().steps_planned_by(at_s) if self.overlaps else bisect_left(self.ends_s, at_s) + 1

    def measure(self, drafted_tokens: int) -> None:
        """Set the step's shape, before its tokens are counted as computed."""
        seqs = context = draft_seqs = draft_tokens = longest = squares = 0
        chunks = tokens = prompts = pairs = longest_prompt = 0
        for part in self.scheduled:
            n, before = part.tokens, part.computed
            if part.live.status is DECODING or part.padded:
                seqs += 1
                context += before + n
                draft_seqs += part.drafts > 0
                draft_tokens += n - 1
                longest = max(longest, before + n)
                squares += (before + n) ** 2
            else:
                chunks += 1
                tokens += n
                prompts += before + n
                pairs += n * before + n * (n + 1) // 2
                longest_prompt = max(longest_prompt, before + n)
        self.decode_seqs = seqs
        self.shape = StepShape(
            seqs, context, chunks, tokens, prompts, pairs, longest, squares, longest_prompt,
            draft_seqs, draft_tokens, drafted_tokens,
        )  # fmt: skip
