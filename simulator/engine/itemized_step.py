"""Requests, batch and steps of an itemized replica, whose steps are walked through request by request."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from simulator.engine.decisions import DecisionLog
from simulator.engine.decode_batch import DecodeBatch
from simulator.engine.in_flight import OverlappedInFlight
from simulator.engine.state import ReplicaState
from simulator.plan import StepPlan
from simulator.request import Request
from simulator.request_state import DECODING, WAITING, DecodeClock, RequestState
from simulator.timing.cost import StepShape


class ItemizedRequest(RequestState):
    """A request whose counts change step by step: what vLLM's `Request` keeps beside the plain counts.

    `reserved_tokens` is the furthest token that it has had blocks for: none is given back when drafts are rejected.
    `base_computed` counts the drafts of steps in flight as if they were accepted, and the tokens of a load from its
    beginning on. Over a pipeline it decodes again with the plan of the number `decode_from`, at the earliest, and the
    first stage has its last token at `token_s`. `is_loading`: a connector's load is under way; `is_settled`: no load
    has ended that is not counted yet.
    """

    __slots__ = (
        "_draft_counts", "decode_from", "external_tokens", "in_flight_tokens", "is_loading", "is_settled",
        "load_failed", "num_drafts", "num_output_placeholders", "sampling_steps", "stale_tokens", "token_s",
        "verify_steps",
    )  # fmt: skip

    def __init__(self, request: Request, clock: DecodeClock) -> None:
        super().__init__(request, clock)
        self.num_drafts = 0  # that its next step verifies
        self.num_output_placeholders = 0  # sampled tokens and drafts of steps in flight, with asynchronous scheduling
        self.in_flight_tokens = 0  # scheduled, their results still to come
        self.stale_tokens = 0  # of these, scheduled before its last preemption
        self.sampling_steps = 0
        self.verify_steps = 0
        self.decode_from = 0
        self.token_s = 0.0
        self.is_loading = False
        self.is_settled = True
        self.load_failed = False
        self.external_tokens = 0  # of the present load
        self._draft_counts: dict[tuple[int, int], int] = {}

    # No decode step is counted by the clock, so that counts are simpler than those of a plain request.

    @property
    def output_tokens_so_far(self) -> int:
        return self.base_outputs

    @property
    def num_tokens(self) -> int:
        return self.input_tokens + self.base_outputs

    @property
    def num_computed_tokens(self) -> int:
        return self.base_computed

    @property
    def num_blocks(self) -> int:
        if self.status is WAITING:
            return 0
        tokens = self.reserved_tokens if self.reserved_tokens > self.base_computed else self.base_computed
        return -(-tokens // self.clock.block_size)

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens of its prompt or, decoding, the sampled token and its drafts; 0 until stages have its last token."""
        if self.clock.plans < self.decode_from:
            return 0
        known = self.input_tokens + self.base_outputs
        return known + self.num_output_placeholders + self.num_drafts - self.base_computed

    def verified(self, drafts: int, accepted: int, steps: int = 1) -> None:
        """So many steps have each verified drafts of it, padding too, as vLLM's `observe_draft` counts them."""
        if steps:
            key = drafts, accepted
            self._draft_counts[key] = self._draft_counts.get(key, 0) + steps

    @property
    def draft_counts(self) -> Mapping[tuple[int, int], int]:
        """Its verify steps, by drafts and accepted drafts."""
        return self._draft_counts

    def take_back(self) -> None:
        """It is preempted: results on their way are delivered, and change none of its counts."""
        self.num_drafts = 0
        self.num_output_placeholders = 0
        self.stale_tokens = self.in_flight_tokens
        known = self.input_tokens + self.base_outputs
        if self.base_computed > known:
            self.base_computed = known  # drafts are no loss


class ItemizedBatch(DecodeBatch):
    """A decode batch that only counts its requests, each of which goes on by a number of tokens of its own.

    `run_used` are the blocks in use during the steps of a run in execution, but for its first.
    """

    __slots__ = ("run_used",)

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.run_used: list[int] = []

    def join(self, live: RequestState, tokens_left: int) -> None:
        """`live` has its prompt computed, and decodes from the next step on."""
        live.status = DECODING
        self.size += 1

    def leave(self, live: RequestState) -> None:
        """`live` stops decoding."""
        self.size -= 1

    def blocks_needed(self) -> int:
        """None are needed that no plan names."""
        return 0

    def block_use(self, used: int, steps: int) -> list[int]:
        """Used blocks in each of the first `steps` steps of the run in execution."""
        return [used, *self.run_used[: steps - 1]]


class Scheduled:
    """A request's part of a step. `accepted` of its `drafts` are; the padding of an admission never is."""

    __slots__ = (
        "accepted", "admitted", "computed", "drafts", "is_prompt", "live", "padded", "proposed", "samples", "tokens",
    )  # fmt: skip

    def __init__(self, live: ItemizedRequest, tokens: int, drafts: int, *, padded: bool) -> None:
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


class StepRun:
    """Steps behind the first of a run. All sequences of steps begin with the second step of the run.

    `accepted` has a list a request, with an entry a step; `growing` the requests, by their place, that take blocks in a
    step, with how many; `reserved` their `reserved_tokens` then; `used` the blocks in use.
    """

    __slots__ = ("accepted", "growing", "lives", "reserved", "shapes", "used")

    def __init__(self, lives: Sequence[ItemizedRequest]) -> None:
        self.lives = lives
        self.accepted: list[list[int]] = [[] for _ in lives]
        self.growing: list[list[tuple[int, int]]] = []
        self.reserved: list[list[int]] = []
        self.shapes: list[StepShape] = []
        self.used: list[int] = []


class ItemizedStep(OverlappedInFlight):
    """A step of an itemized replica, which may verify drafts beside prompts; without asynchronous scheduling too.

    `next_drafts` are proposed for each request at its end, unless none of them would be verified (`skips_drafts`).
    """

    __slots__ = ("next_drafts", "overlaps", "record", "run", "scheduled", "skips_drafts")

    def __init__(
        self, state: ReplicaState, plan: StepPlan, now_s: float, scheduled: Sequence[Scheduled], waiting: int
    ) -> None:
        super().__init__(state, plan, now_s, StepShape(0, 0), 0, waiting)
        self.scheduled = scheduled
        self.next_drafts = 0
        self.skips_drafts = False
        self.overlaps = state.traits.async_scheduling
        self.run: StepRun | None = None
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


def log_planned(
    log: DecisionLog, state: ReplicaState, step: ItemizedStep, planned_s: float, *, drafts: bool = True
) -> None:
    """Add a step, which has been planned; its results are still to come. With `drafts` it says of them:

    `computed` counts the tokens of each request after the step as if its drafts were accepted, `spec` the drafts that
    it verifies, `padded` names those whose drafts are padding, `next_k` is the number of drafts asked for at its end.
    """
    parts = {part.live: part for part in step.scheduled}
    times = {"t_start_s": step.start_s, "t_end_s": step.ends_s[-1]}
    if step.overlaps:
        times = {"t_schedule_s": planned_s, **times}
    free = state.blocks.num_free
    step.record = {
        "replica": log.replica,
        "step": len(log.steps),
        **times,
        "scheduled": {live.request_id: part.tokens for live, part in parts.items()},
        "admitted": {part.live.request_id: part.computed for part in step.scheduled if part.admitted},
        "preempted": [preemption.request.request_id for preemption in step.plan.preempt],
        "swapped_out": [],
        "swapped_in": [],
        "running": [live.request_id for live in state.running],
        "finished": [],
        "waiting": [live.request_id for live in state.waiting],
        "num_free_blocks": free,
        "num_free_blocks_end": free,
    }
    log.steps.append(step.record)
    if (held := getattr(step.plan.note, "held", None)) is not None:
        step.record["held"] = held
    if state.adapters is not None:
        step.record["adapters"] = sorted(state.adapters.running)
    if log.tells_dummies:
        step.record["dummy"] = not parts
    if not drafts:
        return
    step.record |= {
        "spec": {live.request_id: part.drafts for live, part in parts.items() if part.drafts},
        "padded": [live.request_id for live, part in parts.items() if part.padded],
        "computed": {live.request_id: part.computed + part.tokens for live, part in parts.items()},
        "emitted": {},
        "next_k": step.next_drafts,
        "skip_drafts": step.skips_drafts,
    }
