"""Plans and chunks made without their constructors, which take three times as long. A test holds them to be equal."""

from typing import Final

from simulator.plan import Chunk, Holds, Preemption, StepPlan, View
from simulator.request import RequestView

UNTIL_ARRIVAL: Final = StepPlan(holds=Holds.ARRIVAL)  # all decode, until a request arrives
UNTIL_CHANGE: Final = StepPlan(holds=Holds.CHANGE)  # all decode, and arrivals do not alter that
_new: Final = tuple.__new__
_CHUNK: Final = Chunk
_PLAN: Final = StepPlan
_STEP: Final = Holds.STEP


def decodes_on(view: View, slots: int, order: str) -> StepPlan:
    """The plan that only decodes: it holds until an arrival that could enter."""
    if len(view.running) >= slots or (order == "fcfs" and view.waiting):
        return UNTIL_CHANGE  # no slot for an arrival, or it queues behind a head that is stuck
    return UNTIL_ARRIVAL


def chunk_of(request: RequestView, num_tokens: int) -> Chunk:
    """A chunk without reservation or padding."""
    return _new(_CHUNK, (request, num_tokens, 0, 0))


def step_plan(
    *,
    preempt: tuple[Preemption, ...] = (),
    resume: tuple[RequestView, ...] = (),
    prefill: tuple[Chunk, ...] = (),
    decode: bool = True,
    paused: tuple[RequestView, ...] = (),
    holds: Holds = _STEP,
    wait_until_s: float | None = None,
    more: bool = False,
    note: object = None,
    tried: tuple[RequestView, ...] | None = None,
    to_end: tuple[RequestView, ...] = (),
    withheld: bool = False,
    requeue: tuple[RequestView, ...] | None = None,
    hold_steps: int | None = None,
) -> StepPlan:
    """`StepPlan` of the same arguments."""
    fields = (
        preempt, resume, prefill, decode, paused, holds, wait_until_s,
        more, note, tried, to_end, withheld, requeue, hold_steps,
    )  # fmt: skip
    return _new(_PLAN, fields)
