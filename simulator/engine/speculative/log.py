"""The decision log of steps with drafts: a record of `simulator.engine.decisions`, and what each request drafts."""

from simulator.engine.decisions import DecisionLog
from simulator.engine.speculative.step import VerifyStep
from simulator.engine.state import ReplicaState


def log_planned(
    log: DecisionLog, state: ReplicaState, step: VerifyStep, planned_s: float, *, drafts: bool = True
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
