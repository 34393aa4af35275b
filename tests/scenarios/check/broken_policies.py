"""Policies with one defect each: what `batchlab check policy` has to find, and by which law."""

import random
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar

from simulator.division import cdiv
from simulator.plan import Chunk, Holds, Preemption, StepPlan, View
from simulator.request import RequestView


def needed(request: RequestView, view: View) -> int:
    """Blocks for its prompt and its whole cap."""
    return cdiv(request.input_tokens + request.max_tokens, view.block_size)


@dataclass
class Sound:
    """One request after the other, its whole prompt in a step, its memory reserved: breaks no law."""

    max_num_seqs: int = 4

    def refuses(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        fits = cdiv(request.input_tokens + request.max_tokens, block_size) <= num_blocks
        return None if fits else "too long"

    def plan(self, view: View) -> StepPlan:
        if view.running or not len(view.waiting):
            return self.going_on(view)
        return self.admitting(self.choose(view), view)

    def going_on(self, view: View) -> StepPlan:
        return StepPlan(prefill=tuple(Chunk(r, r.num_tokens_to_compute) for r in view.prefilling))

    def choose(self, view: View) -> RequestView:
        return view.waiting.head

    def admitting(self, request: RequestView, view: View) -> StepPlan:
        return StepPlan(prefill=(self.chunk(request),))

    def chunk(self, request: RequestView) -> Chunk:
        return Chunk(request, request.num_tokens_to_compute, request.input_tokens + request.max_tokens)


@dataclass
class OverTokens(Sound):
    """Computes whole prompts, whatever the budget of tokens."""

    max_num_batched_tokens: int = 64


class OverSeqs(Sound):
    """Admits whatever has memory, and looks at no slots."""

    def plan(self, view: View) -> StepPlan:
        free, chunks = view.num_free_blocks, []
        for request in view.waiting:
            if (free := free - needed(request, view)) < 0:
                break
            chunks.append(self.chunk(request))
        return StepPlan(prefill=tuple(chunks))


@dataclass
class CountsOnSelf(Sound):
    """Every third plan is another: it counts in itself."""

    calls: int = field(default=0, init=False)

    def choose(self, view: View) -> RequestView:
        self.calls += 1
        return list(view.waiting)[-1] if self.calls % 3 == 0 else view.waiting.head


SERVED: list[int] = []


class CountsInModule(Sound):
    """The last in the queue is served first after three plans that admitted: a list of the module counts them."""

    def choose(self, view: View) -> RequestView:
        if view.now_s not in SERVED:
            SERVED.append(int(view.now_s * 1e6))
        return list(view.waiting)[-1] if len(set(SERVED)) > 2 else view.waiting.head


class KeepsHistory(Sound):
    """Learns how long each answer is, and when the same requests come again, serves the shortest first."""

    longest: ClassVar[dict[int, int]] = {}

    def plan(self, view: View) -> StepPlan:
        for request in view.running:
            self.longest[request.row] = max(self.longest.get(request.row, 0), request.output_tokens_so_far)
        return super().plan(view)

    def choose(self, view: View) -> RequestView:
        return min(view.waiting, key=lambda request: (self.longest.get(request.row, 0), request.row))


class Meddles(Sound):
    """Changes a request that it should only look at."""

    def choose(self, view: View) -> RequestView:
        chosen: Any = view.waiting.head
        chosen.priority += 1
        return view.waiting.head


def true_lengths() -> list[int]:
    """The true output lengths, from a frame of the simulator: what no type checker sees."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if "workload" in frame.f_locals:
            return [int(tokens) for tokens in frame.f_locals["workload"].output_tokens]
    raise LookupError


class PeeksAtFrames(Sound):
    """Shortest answer first, by the callers' local variables."""

    def choose(self, view: View) -> RequestView:
        lengths = true_lengths()
        return min(view.waiting, key=lambda request: (lengths[request.row], request.row))


class SeesTheFuture(Sound):
    """Lets a request wait as long as a shorter prompt is still to come."""

    def plan(self, view: View) -> StepPlan:
        if view.running or not len(view.waiting):
            return self.going_on(view)
        frame = sys._getframe()
        while "workload" not in frame.f_locals and frame.f_back is not None:
            frame = frame.f_back
        workload = frame.f_locals["workload"]
        later = workload.arrival_s[workload.arrival_s > view.now_s]
        if len(later) and len(view.waiting) == 1:
            return StepPlan(wait_until_s=float(later[0]))
        return self.admitting(view.waiting.head, view)


class Livelock(Sound):
    """Admits a token of a prompt, and throws the request out again."""

    def plan(self, view: View) -> StepPlan:
        if view.running:
            return StepPlan(preempt=(Preemption(next(iter(view.running))),))
        if not len(view.waiting):
            return StepPlan()
        return StepPlan(prefill=(Chunk(view.waiting.head, 0),))


class LoopsForEver(Sound):
    """Waits inside plan() for a second request to come."""

    def plan(self, view: View) -> StepPlan:
        while len(view.waiting) == 1:
            pass
        return super().plan(view)


class LoopsLater(Sound):
    """Loops for ever when it is asked again for the same view: no run does so."""

    last_s: ClassVar[list[float]] = [-1.0]

    def plan(self, view: View) -> StepPlan:
        while view.now_s == self.last_s[0] and view.waiting:
            pass
        self.last_s[0] = view.now_s
        return super().plan(view)


class NeverPreempts(Sound):
    """Takes the memory of prompts alone, and decodes whether there are blocks or not."""

    def plan(self, view: View) -> StepPlan:
        free, slots, chunks = view.num_free_blocks, self.max_num_seqs - len(view.running), []
        for request in view.waiting:
            if (free := free - cdiv(request.num_tokens, view.block_size)) < 0 or (slots := slots - 1) < 0:
                break
            chunks.append(Chunk(request, request.num_tokens_to_compute))
        return StepPlan(prefill=tuple(chunks))


class ComputesTwice(Sound):
    """Names the only request that waits twice."""

    def admitting(self, request: RequestView, view: View) -> StepPlan:
        half = request.input_tokens // 2
        most = request.input_tokens + request.max_tokens
        if not half:
            return super().admitting(request, view)
        return StepPlan(prefill=(Chunk(request, half, most), Chunk(request, request.input_tokens - half, most)))


class HoldsTooLong(Sound):
    """Says that arrivals cannot alter its plan, and admits whoever arrives."""

    def plan(self, view: View) -> StepPlan:
        slots = self.max_num_seqs - len(view.running)
        if slots > 0 and len(view.waiting) and needed(view.waiting.head, view) <= view.num_free_blocks:
            return self.admitting(view.waiting.head, view)
        return StepPlan(holds=Holds.CHANGE)


class Starves(Sound):
    """Serves no request of a lower priority, ever."""

    def plan(self, view: View) -> StepPlan:
        if view.running or not len(view.waiting):
            return self.going_on(view)
        best = [request for request in view.waiting if request.priority == 0]
        return self.admitting(best[0], view) if best else StepPlan()


class LeaksAPause(Sound):
    """Pauses a request of a low priority when its prompt is computed, and wakes it no more."""

    def going_on(self, view: View) -> StepPlan:
        return super().going_on(view)._replace(paused=tuple(r for r in view.running if r.is_decoding and r.priority))


class Raises(Sound):
    """Divides by the number of requests that wait behind the first."""

    def choose(self, view: View) -> RequestView:
        return view.waiting.head if 1 // (len(view.waiting) - 1) else list(view.waiting)[-1]


class Idles(Sound):
    """Waits a second before it admits: what a policy may do by design."""

    def plan(self, view: View) -> StepPlan:
        if view.running or not len(view.waiting):
            return self.going_on(view)
        head = view.waiting.head
        if view.now_s < head.arrival_s + 1.0:
            return StepPlan(wait_until_s=head.arrival_s + 1.0)
        return self.admitting(head, view)


class NeverLong(Sound):
    """Admits no prompt of 200 tokens or more."""

    def plan(self, view: View) -> StepPlan:
        if view.running or not len(view.waiting):
            return self.going_on(view)
        short = [request for request in view.waiting if request.input_tokens < 200]
        return self.admitting(short[0], view) if short else StepPlan()


class NeverVeryLong(Sound):
    """Admits no prompt beyond 32,768 tokens."""

    def plan(self, view: View) -> StepPlan:
        if view.running or not len(view.waiting):
            return self.going_on(view)
        short = [request for request in view.waiting if request.input_tokens <= 32768]
        return self.admitting(short[0], view) if short else StepPlan()


class ForgetsPreempted(Sound):
    """Displaces a running request for one of a better priority, and takes no victim back."""

    def plan(self, view: View) -> StepPlan:
        waiting = [request for request in view.waiting if not request.output_tokens_so_far]
        if not view.running:
            return self.admitting(waiting[0], view) if waiting else StepPlan()
        running = next(iter(view.running))
        if running.is_decoding and any(request.priority < running.priority for request in waiting):
            return StepPlan(preempt=(Preemption(running),))
        return self.going_on(view)


class StarvesAClass(Sound):
    """Serves the class `batch` never."""

    def plan(self, view: View) -> StepPlan:
        if view.running or not len(view.waiting):
            return self.going_on(view)
        served = [request for request in view.waiting if request.class_name != "batch"]
        return self.admitting(served[0], view) if served else StepPlan()


class GivesUpInACrowd(Sound):
    """Serves nobody while more than 16 requests wait."""

    def plan(self, view: View) -> StepPlan:
        return StepPlan() if len(view.waiting) > 16 and not view.running else super().plan(view)


class StopsLongAnswers(Sound):
    """Pauses an answer after 100 tokens, for ever."""

    def going_on(self, view: View) -> StepPlan:
        return super().going_on(view)._replace(paused=tuple(r for r in view.running if r.output_tokens_so_far >= 100))


class ClosesAtNight(Sound):
    """Admits nothing after an hour."""

    def plan(self, view: View) -> StepPlan:
        return StepPlan() if view.now_s > 3600 and not view.running else super().plan(view)


class LastComeFirst(Sound):
    """Serves the request that came last: what a policy may do by design, and starves others under load."""

    def choose(self, view: View) -> RequestView:
        return list(view.waiting)[-1]


class DrawsLots(Sound):
    """Chooses by a random number without a seed."""

    def choose(self, view: View) -> RequestView:
        return random.choice(list(view.waiting))


class AdmitsTwice(Sound):
    """Admits a request a second time while it runs."""

    def going_on(self, view: View) -> StepPlan:
        again = tuple(Chunk(r, 1) for r in view.running if r.is_decoding)
        return StepPlan(prefill=again) if again else super().going_on(view)


@dataclass
class NeedsMore:
    """A parameter without a default."""

    quantum: int
    max_num_seqs: int = 4

    def plan(self, view: View) -> StepPlan:
        if view.running or not len(view.waiting) or self.quantum < 1:
            return StepPlan(prefill=tuple(Chunk(r, r.num_tokens_to_compute) for r in view.prefilling))
        request = view.waiting.head
        return StepPlan(prefill=(Chunk(request, request.num_tokens_to_compute),))
