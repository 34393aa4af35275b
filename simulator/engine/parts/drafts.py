"""vLLM's drafts, and runs of verify steps in which nothing changes, worked out at once: fast-forward with drafts.

A plan that holds lets every running request verify its drafts, step after step, until one finishes or lacks blocks, or
an arrival matters. What is accepted is known to the engine beforehand. So it works out the steps in one loop, and when
they have ended it counts them for each request at once. The last of them is launched like any other: a request may
finish with it, and aborts come before its results.

With asynchronous scheduling a step is planned before the results of the one before it are there; so the last two of a
run are launched like any other. Runs are for memory in which no other request can find what a decode fills.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import inf
from operator import add
from typing import Final

from simulator.division import cdiv
from simulator.engine.in_flight import InFlight
from simulator.engine.itemized import Drafter, ItemizedReplica
from simulator.engine.itemized_apply import ItemizedPlans
from simulator.engine.itemized_step import ItemizedRequest, ItemizedStep, Scheduled, StepRun
from simulator.engine.state import ReplicaState
from simulator.memory.grouped import GroupedBlocks
from simulator.plan import Holds, StepPlan
from simulator.request import Request, RequestView
from simulator.speculative import Speculation
from simulator.timing.cost import StepShape

_LONGEST_RUN: Final = 256  # as of decode steps: what an arrival cuts off is wasted
_NONE: Final = (-1, -1)  # drafts and accepted ones where there is no result: not even one token


class Runs:
    """Works out and commits the runs of one replica. `arrived_s`: of requests that came since the last plan."""

    __slots__ = ("_budget", "_execute", "_plans", "_speculation", "_state", "arrived_s")

    def __init__(
        self,
        state: ReplicaState,
        plans: ItemizedPlans,
        speculation: Speculation,
        execute: Callable[[ItemizedStep], float],
        budget: float,
    ) -> None:
        self._state = state
        self._plans = plans
        self._speculation = speculation
        self._execute = execute
        self._budget = budget
        self.arrived_s: list[float] = []

    def can_follow(self, step: ItemizedStep, before: ItemizedStep | None) -> bool:
        """Whether further steps like this one may follow without a plan; `before` is the step in flight, if any."""
        state, config, drafts = self._state, self._speculation.config, step.next_drafts
        cache = state.cache
        if step.skips_drafts or config.has_varying_drafts or len(step.scheduled) < len(state.running):
            return False
        if len(step.scheduled) * (1 + drafts + config.draft_slots) > self._budget:
            return False
        if before is not None and not {part.live for part in before.scheduled} <= state.running.keys():
            return False  # its results may change the queue
        return cache is None or (cache.keys is not None and not cache.keys.num_telling)

    def work_out(self, step: ItemizedStep, before: ItemizedStep | None, due_s: float, hold_steps: int | None) -> None:
        """Append to the step's ends those of the steps that follow it, and note what happens in them.

        No step is planned at `due_s` or later, when something arrives that matters; there are `hold_steps` at most.
        With asynchronous scheduling a plan knows the results of all steps but the last, those of `before` included.
        """
        state, (config, acceptance, longest, _) = self._state, self._speculation
        size, drafts, lookahead = state.batch.block_size, step.next_drafts, config.num_lookahead_tokens
        tokens, overlaps = 1 + drafts, step.overlaps
        lives = [part.live for part in step.scheduled]
        run = StepRun(lives)
        late = [(part.drafts, part.accepted) for part in step.scheduled]  # results that are still to come
        told = late  # those that the next plan knows
        if overlaps:
            known = {} if before is None else {part.live: part for part in before.scheduled if part.samples}
            told = [(known[live].drafts, known[live].accepted) if live in known else _NONE for live in lives]
        computed = [live.base_computed - made + kept for live, (made, kept) in zip(lives, told, strict=True)]
        left = [state.tokens_left(live) - 1 - kept for live, (_, kept) in zip(lives, told, strict=True)]
        if min(left) <= (1 + overlaps) * tokens or any(live.stale_tokens for live in lives):
            return  # some request may finish so soon that the run would not pay
        spare = [live.max_tokens - state.requests[live.row].output_tokens for live in lives]
        reserved = [live.reserved_tokens for live in lives]
        verified = [live.verify_steps for live in lives]
        rows = [live.row for live in lives]
        free, used = state.blocks.num_free, state.blocks.num_blocks - state.blocks.num_free
        first, ends = step.shape, step.ends_s
        accepts = acceptance.accepted
        is_last = False
        most = _LONGEST_RUN if hold_steps is None else min(hold_steps, _LONGEST_RUN)
        while not is_last and len(ends) < most and step.planned_s(len(ends)) < due_s:
            if max(computed) + tokens >= longest:
                break
            if config.can_skip_drafts and max(map(add, left, spare)) <= 1 + overlaps:
                break
            if overlaps and min(map(add, left, spare)) <= 1:
                break  # its last token is sure to be in flight
            growing, grown = _grow([min(at + tokens + lookahead, longest) for at in computed], reserved, size)
            taken = sum([more for _, more in growing])
            if taken > free:
                break
            free -= taken
            used += taken
            reserved = grown
            step.shape = shape = _shape(computed, tokens)
            start_s = ends[-1]
            ends.append(start_s + self._execute(step))
            run.shapes.append(shape)
            run.growing.append(growing)
            run.used.append(used)
            run.reserved.append(reserved)
            made = []
            for place, row in enumerate(rows):
                accepted = accepts(row, verified[place]) if drafts else 0
                if accepted > drafts:
                    accepted = drafts
                verified[place] += drafts > 0
                run.accepted[place].append(accepted)
                made.append((drafts, accepted))
            told, late = (late if overlaps else made), made
            for place, (asked, kept) in enumerate(told):
                computed[place] += tokens - asked + kept
                left[place] -= 1 + kept
                if left[place] <= 0:
                    is_last = True
        step.shape = first
        if run.shapes:
            step.run = run

    def waiting_at(self, step: ItemizedStep, planned_s: float) -> int:
        """Requests that wait when a step of the run is planned."""
        return step.waiting + bisect_right(self.arrived_s, planned_s)

    def take_blocks(self, run: StepRun, steps: int) -> None:
        """Take the blocks of the first steps of the run, in their order."""
        blocks = self._state.blocks
        for growing in run.growing[:steps]:
            for place, more in growing:
                blocks.allocate(run.lives[place].row, more)
        for live, reserved in zip(run.lives, run.reserved[steps - 1], strict=True):
            live.reserved_tokens = reserved

    def pass_over(self, run: StepRun, ends: Sequence[float], steps: int, drafts: int) -> None:
        """Count the first steps of the run, whose blocks are taken; no request finishes with them.

        `ends` begins with the end of the step before; that step's results have been taken in.
        """
        state = self._state
        last_s = ends[steps]
        for live, accepted in zip(run.lives, run.accepted, strict=True):
            counted = accepted[:steps]
            total = sum(counted)
            live.base_outputs += steps + total
            live.base_computed += steps + total
            live.sampling_steps += steps
            if drafts:
                live.verify_steps += steps
                for value in range(drafts + 1):
                    live.verified(drafts, value, counted.count(value))
            live.last_token_s = last_s
            self._plans.memory.enter(live, live.base_computed)
        if state.streams:
            for number in range(1, steps + 1):
                end_s = ends[number]
                gaps = {end_s - ends[number - 1]: len(run.lives)}
                extra = sum([accepted[number - 1] for accepted in run.accepted])
                if extra:
                    gaps[0.0] = gaps.get(0.0, 0) + extra
                for gap_s, count in gaps.items():
                    state.records.late_gaps.add((gap_s, count, end_s))


def _grow(rooms: Sequence[int], reserved: Sequence[int], size: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The places that take blocks for this room, with how many, and the room that all have then."""
    growing, grown = [], []
    for place, (room, had) in enumerate(zip(rooms, reserved, strict=True)):
        if room > had:
            more = cdiv(room, size) - cdiv(had, size)
            if more > 0:
                growing.append((place, more))
        grown.append(max(room, had))
    return growing, grown


def _shape(computed: Sequence[int], tokens: int) -> StepShape:
    """The shape of a step in which all requests compute so many tokens, behind those computed."""
    seqs, drafts = len(computed), tokens - 1
    after = [before + tokens for before in computed]
    squares = sum([context * context for context in after])
    return StepShape(
        seqs, sum(after), 0, 0, 0, 0, max(after), squares, 0,
        seqs if drafts else 0, drafts * seqs, drafts * seqs,
    )  # fmt: skip


class Drafts(Drafter):
    """vLLM's drafts: verified in a step, proposed at its end, rolled back where they are rejected."""

    def __init__(self, speculation: Speculation) -> None:
        super().__init__(speculation.config, speculation.max_model_len)
        self._speculation = speculation
        self._acceptance = speculation.acceptance
        self._runs: Runs | None = None

    def joins(self, replica: ItemizedReplica) -> None:
        super().joins(replica)
        replica.state.caps = self._room

    def plans(self) -> ItemizedPlans:
        plans, replica = super().plans(), self._replica
        if (
            replica.works_out_runs
            and replica.state.adapters is None
            and not isinstance(self._state.blocks, GroupedBlocks)
        ):
            self._runs = Runs(self._state, plans, self._speculation, replica.execute_step, replica.budget)
        return plans

    def _room(self, request: RequestView, num_blocks: int, block_size: int) -> int:
        """The longest answer of a request: the model's longest context less its prompt."""
        return self.longest - request.input_tokens

    def refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request could never be served with so many blocks: its drafts take some, too."""
        longest, config = self.longest, self.config
        if request.input_tokens >= longest:
            return f"{request.input_tokens} input tokens; max_model_len is {longest}"
        ahead = config.num_lookahead_tokens + (1 + self._replica.overlaps) * (1 + config.num_speculative_tokens)
        reach = min(self.whole(request) + ahead, longest)
        if (reason := self._replica.plans.memory.refusal(reach)) is not None:
            return reason
        needed = cdiv(reach, block_size)
        return (
            f"with its drafts it may need {needed} KV blocks; there are {num_blocks}" if needed > num_blocks else None
        )

    def new_request(self, request: Request) -> None:
        self._speculation.acceptance.enter(request)

    def accepted(self, request: Request) -> None:
        if self._runs is not None:
            self._runs.arrived_s.append(request.arrival_s)

    def before_plan(self, now_s: float) -> None:
        if self._runs is not None:
            self._runs.arrived_s.clear()

    def propose(self, step: ItemizedStep) -> int:
        step.next_drafts = self.config.drafts_of(len(step.scheduled))
        step.skips_drafts = self.config.can_skip_drafts and not self._replica.plans.needs_drafts
        return self._propose(step.scheduled, 0 if step.skips_drafts else step.next_drafts)

    def _propose(self, scheduled: Sequence[Scheduled], drafted: int) -> int:
        """Set the drafts that each request is given at the end of the step; returns the tokens drafted for all."""
        for part in scheduled:
            live = part.live
            known = live.input_tokens + live.base_outputs + live.num_output_placeholders
            part.samples = part.computed + part.tokens >= known
            part.proposed = drafted
        if not self.config.has_varying_drafts:
            return drafted * len(scheduled)
        proposals = self._speculation.proposals
        for part in scheduled:
            if not part.samples:
                part.proposed = 0
            elif proposals is not None:
                part.proposed = min(drafted, proposals.proposed(part.live.row, part.live.sampling_steps))
        return sum([part.proposed for part in scheduled])

    def accepts(self, live: ItemizedRequest) -> int:
        return self._acceptance.accepted(live.row, live.verify_steps)

    def goes_on(self, step: ItemizedStep, due_s: float) -> None:
        replica, runs = self._replica, self._runs
        part = replica.plans.last_part
        holds = part.holds
        if holds is Holds.STEP or runs is None or not (replica.timeless or not step.waiting):
            return
        step.until_arrival = holds is Holds.ARRIVAL or replica.cut_by_arrivals
        before = replica.taken_in.in_flight
        if runs.can_follow(step, before):
            runs.work_out(step, before, due_s if step.until_arrival else inf, part.hold_steps)
            replica.batch.run_used = [] if step.run is None else step.run.used

    def pass_over(self, step: ItemizedStep) -> ItemizedStep:
        """Commit all steps of a run but the last, and return that, launched.

        With asynchronous scheduling the results of the last but one are still to come.
        """
        runs, run, replica, ends = self._runs, step.run, self._replica, step.ends_s
        records, results, overlaps = replica.records, replica.taken_in, replica.overlaps
        assert runs is not None
        assert run is not None
        steps = len(ends) - 1  # behind the first
        self._state.decode_clock.prompt_steps += steps
        planned_s = [step.planned_s(number) for number in range(1, steps + 1)]
        step.ends_s = ends[:1]
        replica.record(step)
        results.first_tokens = replica.first_tokens
        if overlaps:
            results.next_is(step)
        else:
            results.take_in(step)
        runs.take_blocks(run, steps)
        for number in range(steps - 1):
            shape = run.shapes[number]
            records.row(ends[number], runs.waiting_at(step, planned_s[number]), shape.decode_seqs, shape)
            if shape.draft_tokens:
                records.odd(0, 0, 0, 0, 0, 0, 0, shape.draft_tokens)
            records.steps([ends[number + 1]], [run.used[number]])
        passed = steps - 1 - overlaps
        if passed >= 0 and overlaps:
            results.take_in_all()
        if passed > 0:
            runs.pass_over(run, ends, passed, step.next_drafts)
        if passed >= 0 and overlaps:
            results.next_is(self._launch_again(step, run, steps - 2, ends, 0))
        return self._launch_again(step, run, steps - 1, ends, runs.waiting_at(step, planned_s[-1]))

    def _launch_again(
        self, first: ItemizedStep, run: StepRun, number: int, ends: list[float], waiting: int
    ) -> ItemizedStep:
        """Launch a step of a run, for which blocks have been taken."""
        start_s, drafts, plans = ends[number], first.next_drafts, self._replica.plans
        scheduled = [plans.schedule_again(live, 1 + drafts, start_s) for live in run.lives]
        step = ItemizedStep(self._state, _HOLDS, start_s, scheduled, waiting)
        step.next_drafts, step.ends_s = drafts, ends[number + 1 : number + 2]
        step.decode_seqs, step.shape = len(scheduled), run.shapes[number]
        self._propose(scheduled, drafts)
        for part in scheduled:
            self.launch_part(part, drafts)
        return step


_HOLDS: Final = StepPlan()


def dummy_verify(drafts: int) -> StepShape:
    """The shape of an idle rank's batch: a request without context verifies so many drafts, and is given as many.

    As `execute_dummy_batch` of vLLM 0.33 in vllm/v1/worker/gpu_worker.py.
    """
    return StepShape(1, 1 + drafts, draft_seqs=1, draft_tokens=drafts, drafted_tokens=drafts)


def draft_together(steps: Sequence[InFlight | None]) -> None:
    """Let data-parallel ranks draft at the end of their common step, unless all of them agree to leave it out.

    As `sync_cudagraph_and_dp_padding` of vLLM 0.33 in vllm/v1/worker/gpu/dp_utils.py. A rank with nothing to compute
    does not agree to it.
    """
    drafting = [step for step in steps if isinstance(step, ItemizedStep) and step.scheduled]
    if len(drafting) == len(steps) and all(step.skips_drafts for step in drafting):
        return
    for step in drafting:
        if step.skips_drafts:
            step.shape = step.shape._replace(drafted_tokens=step.next_drafts * len(step.scheduled))
