"""A policy that does anything it may: every legal kind of plan, drawn from a hash of what it sees."""

import random
import zlib
from dataclasses import dataclass
from typing import cast

from simulator.division import cdiv
from simulator.plan import Chunk, Holds, Preemption, StepPlan, Traits, View
from simulator.request import RequestView

MOST_PREEMPTIONS = 6  # of one request: so that a run ends
PADDING = 3


@dataclass(frozen=True, slots=True)
class RandomPolicy:
    """Legal plans at random, and the same plan for the same view.

    A plan that holds is drawn from what stays as it is while it holds: who is where, and not how far they are.
    """

    seed: int
    max_num_seqs: int = 4
    order: str = "fcfs"
    keeps_finished: bool = False
    streams: bool = True
    reserves: bool = False
    holds: Holds = Holds.STEP
    hold_steps: int | None = None  # a plan holds until the decode steps are a multiple of it

    @property
    def traits(self) -> Traits:
        return Traits(order=self.order, keeps_finished=self.keeps_finished, streams=self.streams)

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """A reservation must fit."""
        most = request.input_tokens + PADDING + request.max_tokens
        return "too long to reserve" if cdiv(most, block_size) > num_blocks else None

    def plan(self, view: View) -> StepPlan:
        decoding = [r for r in view.running if r.is_decoding]
        assert view.num_decoding == len(decoding)
        assert view.decode_blocks_needed == self._grow(view, decoding), "the paused count like the others"
        rng = random.Random(self._key(view))
        plan = self._decode(view, rng) if rng.random() < 0.5 else None
        plan = plan or self._anything(view, rng)
        if not self.keeps_finished:
            return plan
        entered = (*self._entered(view), *[c.request.row for c in plan.prefill if c.request not in view.prefilling])
        return plan._replace(note=entered)

    @staticmethod
    def _entered(view: View) -> tuple[int, ...]:
        """The rows of the requests that have entered since the batch began, as the note keeps them."""
        return cast("tuple[int, ...]", view.note or ()) if view.running else ()

    def _num_held(self, view: View) -> int:
        """Finished requests that keep their slot."""
        return len(self._entered(view)) - len(view.running) if self.keeps_finished else 0

    def _key(self, view: View) -> int:
        members = [(r.row, r.is_decoding, r.num_preemptions) for r in view.running]
        seen: list[object] = [self.seed, self._num_held(view), members]
        if self.holds is not Holds.CHANGE:
            seen.append([(r.row, r.is_swapped) for r in view.waiting])
        if self.holds is Holds.STEP:
            seen.append(view.now_s)
        if self.hold_steps is not None:
            seen.append(view.decode_steps // self.hold_steps)
        return zlib.crc32(repr(seen).encode())

    def _decode(self, view: View, rng: random.Random) -> StepPlan | None:
        """Everybody who decodes, or all but a few, and nothing else; None if nobody can."""
        decoding = [r for r in view.running if r.is_decoding]
        paused = [r for r in decoding if rng.random() < 0.2]
        if len(paused) == len(decoding):
            paused = []
        if not decoding or self._grow(view, [r for r in decoding if r not in paused]) > view.num_free_blocks:
            return None
        most = None if self.hold_steps is None else self.hold_steps - view.decode_steps % self.hold_steps
        return StepPlan(paused=tuple(paused), holds=self.holds, hold_steps=most)

    def _anything(self, view: View, rng: random.Random) -> StepPlan:
        size, free, host = view.block_size, view.num_free_blocks, view.num_free_host_blocks
        stay, preempt = list(view.running), []
        for request in list(view.running):
            if rng.random() < self._preempts(view, request):
                stay.remove(request)
                free += request.num_blocks
                swap = self._may_swap(request) and request.num_blocks <= host and rng.random() < 0.6
                host -= request.num_blocks if swap else 0
                preempt.append(Preemption(request, swap))
        slots = self.max_num_seqs - len(stay) - self._num_held(view)
        resume: list[RequestView] = []
        prefill: list[Chunk] = []
        for request in view.prefilling:
            if request in stay and rng.random() < 0.8:
                tokens = rng.randint(1, request.num_tokens_to_compute)
                needed = self._needed(request, tokens, size)
                if needed <= free:
                    free -= needed
                    prefill.append(Chunk(request, tokens))
        for request in view.waiting:
            if slots <= 0 or rng.random() < 0.2:
                break
            slots -= 1
            if request.is_swapped:
                needed = cdiv(request.num_computed_tokens, size)
                if needed > free:
                    break
                free -= needed
                resume.append(request)
            else:
                chunk = self._entry(request, rng)
                needed = cdiv(max(chunk.num_tokens, chunk.reserve_tokens), size)
                if needed > free:
                    break
                free -= needed
                prefill.append(chunk)
        decoding = [r for r in stay if r.is_decoding] + resume
        paused = [r for r in decoding if r not in resume and rng.random() < 0.2]
        going = [r for r in decoding if r not in paused]
        decode = rng.random() < 0.8 and self._grow(view, going) <= free
        if not (preempt or resume or prefill or (decode and going)):
            return self._unstick(view)
        return StepPlan(
            preempt=tuple(preempt), resume=tuple(resume), prefill=tuple(prefill), decode=decode, paused=tuple(paused)
        )

    def _unstick(self, view: View) -> StepPlan:
        """The draw came to nothing: throw out the last of those who run, so that somebody can go on, or look again."""
        free = view.num_free_blocks
        for request in view.prefilling:
            if self._needed(request, request.num_tokens_to_compute, view.block_size) <= free:
                return StepPlan(prefill=(Chunk(request, request.num_tokens_to_compute),), decode=False)
        if not self.keeps_finished and len(view.running) > 1:
            return StepPlan(preempt=(Preemption(next(reversed(view.running))),), decode=False)
        decoding = [r for r in view.running if r.is_decoding]
        if decoding and self._grow(view, decoding) <= free:
            return StepPlan()
        if len(view.waiting) and not view.running:
            head = view.waiting.head
            if head.is_swapped:
                return StepPlan(resume=(head,), decode=False)
            return StepPlan(prefill=(self._entry(head, random.Random(0)),), decode=False)
        return StepPlan(decode=False, wait_until_s=view.now_s + 0.01 if len(view.waiting) else None)

    def _entry(self, request: RequestView, rng: random.Random) -> Chunk:
        tokens = rng.choice([0, 1, request.num_tokens, rng.randint(1, request.num_tokens)])
        if not self.reserves and not self.keeps_finished:
            return Chunk(request, tokens)
        padding = rng.choice([0, PADDING])
        most = request.input_tokens + padding + request.max_tokens
        return Chunk(request, tokens, most, padding) if padding else Chunk(request, tokens, most)

    def _preempts(self, view: View, request: RequestView) -> float:
        if self.keeps_finished or request.num_preemptions >= MOST_PREEMPTIONS:
            return 0.0
        return 0.1

    def _may_swap(self, request: RequestView) -> bool:
        return request.is_decoding and not self.reserves

    @staticmethod
    def _needed(request: RequestView, tokens: int, size: int) -> int:
        return max(0, cdiv(request.num_computed_tokens + tokens, size) - request.num_blocks)

    @staticmethod
    def _grow(view: View, requests: list[RequestView]) -> int:
        size = view.block_size
        return sum(max(0, cdiv(r.num_computed_tokens + 1, size) - r.num_blocks) for r in requests)
