"""SGLang's `scheduler_recv_interval`: the scheduler looks at what has arrived in one pass of several.

`SchedulerRecvSkipper` (managers/scheduler_components/recv_skipper.py, SGLang 0.5.23), which `recv_requests` asks before
each batch. Its counter grows by 1 with a batch of decodes or a pass without a batch, by 1,000 with any other batch.
Requests are received when it reaches the interval, and it starts again. So arrivals are seen after each step with
prompts, and at every n-th step of a run of decodes. Passes of an idle server take no time: it looks at once.
"""

from typing import Any, NamedTuple, cast

from simulator.plan import Holds, StepPlan, View
from simulator.policies.sglang.prefill_adder import SglangLimits
from simulator.policies.sglang.step import step
from simulator.request import RequestView

PROMPT_WEIGHT = 1000


class ReceiveNote(NamedTuple):
    """State of the receiver from plan to plan, and the `note` of the scheduler behind it.

    The counter is the number of decode steps since `since`, less one more interval each time it was reached while
    nobody waited. `leaps`: the last plan counted for more or less than a decode step.
    """

    since: int
    last: int  # the latest request that was received: rows are in order of arrival
    leaps: bool
    note: object


_AT_REST = ReceiveNote(0, -1, leaps=True, note=None)


class _Received:
    """A view without the requests that were not received yet."""

    def __init__(self, view: View, waiting: list[RequestView], note: object) -> None:
        self._view = view
        self.waiting = waiting
        self.note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def plan_with_interval(view: View, limits: SglangLimits, interval: int) -> StepPlan:
    """Return the plan of `step` for the requests that have been received."""
    note = view.note if isinstance(view.note, ReceiveNote) else _AT_REST
    now, since, last = view.decode_steps, note.since, note.last
    count = now - since
    if not view.running or count % interval == 0 or (note.leaps and count >= interval):
        waiting = list(view.waiting)
        if waiting or note.leaps:
            since, last = now, max([last, *[request.row for request in waiting]])
    else:
        waiting = [request for request in view.waiting if request.row <= last]
    plan = step(cast("View", _Received(view, waiting, note.note)), limits)
    if plan.note is None:
        return plan  # at rest
    weight = PROMPT_WEIGHT if plan.prefill else 1
    decodes = int(plan.decode and view.num_decoding > len(plan.preempt))
    if plan.holds is not Holds.STEP and (view.waiting or plan.holds is Holds.CHANGE):
        plan = plan._replace(holds=Holds.CHANGE, hold_steps=interval - (now - since) % interval)
    return plan._replace(note=ReceiveNote(since - weight + decodes, last, weight != decodes, plan.note))
