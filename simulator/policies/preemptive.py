"""Priority scheduling with preemption: who matters more takes the place of who matters less, at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from simulator.plan import Holds, StepPlan, Traits, View
from simulator.policies.parts.parameters import check_choice, check_counts
from simulator.policies.parts.plan_builder import PlanBuilder
from simulator.policies.parts.preemption import MODES, swap_pays
from simulator.policies.parts.system import System
from simulator.policies.parts.victims import VICTIMS, rank
from simulator.request import RequestView


@dataclass(frozen=True, slots=True)
class Preemptive:
    """Chunked prefill under one token budget, in order of priority, then arrival.

    A waiting request of higher priority takes the slot or the memory of the lowest-priority running one as soon as it
    arrives; equals never displace each other. Of victims of equal priority the latest to arrive leaves, or whom
    `victim` says (`simulator.policies.parts.victims.VICTIMS`). They return in their order when they fit.

    `preemption_mode` says how victims leave: `recompute` throws their KV away, `swap` moves it to the host while that
    has room, `auto` swaps where that pays (`simulator.policies.parts.preemption.swap_pays`). With `pause` a victim
    whose slot is wanted keeps its KV and its place in the batch and sits out, as long as `max_num_seqs` more important
    ones run; that frees no memory, so who must make room for that is recomputed, the paused first. A prompt that is not
    computed yet is recomputed in every mode.
    """

    swaps: ClassVar[bool] = True

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    preemption_mode: str = "recompute"
    victim: str | None = None

    def __post_init__(self) -> None:
        check_counts(self, "max_num_seqs", "max_num_batched_tokens")
        check_choice(self, "preemption_mode", MODES)
        check_choice(self, "victim", (None, *VICTIMS))
        if self.preemption_mode == "pause" and self.victim not in (None, "lowest_priority"):
            raise ValueError(
                f"preemption_mode pause goes with victim lowest_priority, not {self.victim}: "
                "the paused are the least important, and they leave first"
            )

    @property
    def traits(self) -> Traits:
        return Traits(order="priority")

    def plan(self, view: View) -> StepPlan:
        quiet = not view.prefilling and not view.waiting
        fits = view.decode_blocks_needed <= view.num_free_blocks
        if quiet and fits and view.num_decoding <= min(self.max_num_batched_tokens, self.max_num_seqs):
            return _DECODE
        key = rank if self.victim in (None, "lowest_priority") else self._importance
        draft = PlanBuilder(
            view,
            self.max_num_batched_tokens,
            lambda: sorted(view.running, key=key),
            lambda request: self._swaps(view, request),
        )
        over = max(len(view.running) - self.max_num_seqs, -draft.budget)
        if over > 0:
            for request in sorted(filter(_decodes, view.running), key=rank)[-over:]:
                draft.pause(request)
        draft.fit_decodes()
        draft.fit_prompts(sorted(view.prefilling, key=rank))
        if not draft.gone:
            self._admit(draft)
        return draft.plan(Holds.ARRIVAL)

    def _admit(self, draft: PlanBuilder) -> None:
        """The heads of the queue enter, at the expense of less important ones if need be; nobody is passed over."""
        slots = self.max_num_seqs - len(draft.view.running) + len(draft.paused)
        for request in draft.view.waiting:
            if draft.budget == 0:
                return
            needed = draft.blocks_to_enter(request)
            if needed > draft.free or slots <= 0:
                pauses = self.preemption_mode == "pause"
                victims = draft.victims(_less_important(draft, request), needed, slots, pauses=pauses)
                if not victims:
                    return
                for victim, stays in victims:
                    slots += victim not in draft.paused
                    (draft.pause if stays else draft.leave)(victim)
            draft.enter(request)
            slots -= 1

    def _importance(self, request: RequestView) -> tuple[int, ...]:
        """Priority first; the larger leaves the sooner."""
        return (request.priority, *VICTIMS[self.victim or "last"](request))

    def _swaps(self, view: View, request: RequestView) -> bool:
        if self.preemption_mode != "auto":
            return self.preemption_mode == "swap"
        return swap_pays(view, request, _ahead(view, request))


def _less_important(draft: PlanBuilder, request: RequestView) -> Iterable[RequestView]:
    """Those who run with a lower priority than that of `request`, the first to leave first."""
    priority = request.priority
    if not draft.gone and not any(other.priority > priority for other in draft.view.running):
        return ()  # spares the sorting
    return takewhile(lambda other: other.priority > priority, reversed(draft.stays))


def _decodes(request: RequestView) -> bool:
    return request.is_decoding


def _ahead(view: View, request: RequestView) -> Iterator[RequestView]:
    """Those who wait and return or enter before a victim does."""
    mine = rank(request)
    return takewhile(lambda other: rank(other) < mine, view.waiting)


_DECODE = StepPlan(holds=Holds.ARRIVAL)


SYSTEM = System(
    name="priority scheduling with preemption",
    batch="every step",
    prompts="in chunks beside the decodes",
    grant="blocks of the whole sequence",
    order="priority, then arrival",
    victim="the least important (of equals the latest, or `victim`) when a more important one lacks a slot or blocks",
    preemption="recompute, swap, `auto` (whichever is predicted cheaper), or `pause` for want of a slot",
)
