"""vLLM's `prefill_schedule_interval`: prompts are computed in one step of several, and the others only decode.

As in `Scheduler.schedule` of vLLM 0.33 (vllm/v1/core/sched/scheduler.py): after a step that computed a prompt, prompts
are held back until the interval has passed, while anything decodes. A request with one token left to compute passes.
Once a step that held nothing back leaves requests waiting, the engine is full, and nothing is held until the queue is
empty. Ranks that step in lockstep count common steps instead (`View.prefills_throttled`). Drafts change none of it.
"""

from typing import NamedTuple, cast

from simulator.plan import Holds, StepPlan, View
from simulator.policies.chunked_prefill.limits import VllmLimits
from simulator.policies.chunked_prefill.schedule import Left, itemized_step, step
from simulator.request import RequestView


class CadenceNote(NamedTuple):
    """What one plan leaves to the next: the number of the last step with a prompt, and whether the engine is full.

    `held`: the plan held prompts back. `passed` are waiting requests that steps have passed over, which do not make the
    engine full; `left` is the note of a plan with drafts.
    """

    last: int
    is_full: bool = False
    held: bool = False
    passed: tuple[RequestView, ...] = ()
    left: Left | None = None


def plan_with_cadence(view: View, limits: VllmLimits, interval: int) -> StepPlan:
    """Return the plan of `step` or `itemized_step`, with prompts held back between the steps of the cadence."""
    note = CadenceNote(-interval) if view.note is None else cast("CadenceNote", view.note)
    throttled = view.prefills_throttled
    due = note.last + interval  # the step that may compute prompts again
    this = view.executed_steps + 1
    if view.step_tokens is None:
        hold = this < due if throttled is None else throttled
        held = hold and not note.is_full and len(view.running) > len(view.prefilling)
    else:
        held = note.held
    drafts = view.drafting is not None
    plan = itemized_step(view, limits, note.left, held=held) if drafts else step(view, limits, held=held)
    last, is_full, left, passed = note.last, note.is_full, None, note.passed
    if isinstance(plan.note, Left):
        left = plan.note
        passed = (*passed, *left.passed)
    if passed:
        admitted_now = [chunk.request for chunk in plan.prefill]
        passed = tuple([live for live in view.waiting if live in passed and live not in admitted_now])
    if _computes_prompts(view, plan):
        last = this if _computes(view, plan) else this - 1
    if not held and not plan.preempt:
        admitted = sum([chunk.request not in view.running for chunk in plan.prefill])
        is_full = len(view.waiting) > admitted + len(passed)
    plan = plan._replace(note=CadenceNote(last, is_full, held, passed, left))
    if held and throttled is None:
        return plan._replace(hold_steps=due - this)
    if note.is_full and not is_full:  # the next step may hold
        return plan._replace(holds=Holds.STEP)
    return plan


def _computes_prompts(view: View, plan: StepPlan) -> bool:
    """True if the plan gives tokens to a running prompt, even one that it preempts then, or admits one of 2 or more."""
    running = view.running
    for request, *_ in plan.prefill:
        if request in running:
            if request.is_decoding:
                continue
            return True
        hits = view.prefix_hits(request)[0] * view.block_size if view.caches_prefixes else 0
        if request.num_tokens_to_compute - hits > 1:
            return True
    return any(victim.scheduled_tokens and not victim.request.is_decoding for victim in plan.preempt)


def _computes(view: View, plan: StepPlan) -> bool:
    """True if anything at all is computed in the step."""
    if view.drafting is not None:
        return bool(plan.prefill)
    idle = len(plan.paused) + sum([victim.request.is_decoding for victim in plan.preempt])
    return bool(plan.prefill) or view.num_decoding > idle
