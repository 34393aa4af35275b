"""TensorRT-LLM's batch waiting: prompts wait beside decodes until together they fill a part of a step.

`PyExecutor._schedule` and `_waiting_requests` in tensorrt_llm/_torch/pyexecutor/py_executor.py: both schedulers have
chosen the step, and its prompts are left out of it while it has fewer tokens than `batch_wait_max_tokens_ratio` of
`max_num_tokens`, for `batch_wait_timeout_iters` steps at most. Without decodes prompts do not wait. What was waited for
counts on, then, towards the next wait.
"""

from typing import NamedTuple

from simulator.plan import Holds, StepPlan, View
from simulator.policies.tensorrt_llm.step import TensorrtLlmLimits, queue_by_arrival, step


class Waited(NamedTuple):
    """Steps that prompts have waited: `steps`, or while they wait the decode steps since `since`."""

    steps: int = 0
    since: int | None = None


def plan_with_wait(view: View, limits: TensorrtLlmLimits, timeout: int, ratio: float) -> StepPlan:
    """Return the plan of `step`, without its prompts if they are to wait."""
    plan = step(view, limits)
    note = view.note if isinstance(view.note, Waited) else Waited()
    count = note.steps if note.since is None else view.decode_steps - note.since
    paused = [victim.request for victim in plan.preempt]
    decodes = view.num_decoding - sum([request.is_decoding for request in paused])
    if not plan.prefill or decodes <= 0:
        return plan._replace(note=Waited(count))
    tokens = decodes + sum([chunk.num_tokens for chunk in plan.prefill])
    if count >= timeout or tokens >= ratio * limits.max_num_tokens:
        return plan._replace(note=Waited())
    waits = plan._replace(prefill=(), note=Waited(0, view.decode_steps - count))
    if not limits.grants:  # memory is given anew at each step
        return waits._replace(requeue=queue_by_arrival(view, paused, ()) if plan.requeue is not None else None)
    return waits._replace(holds=Holds.ARRIVAL, hold_steps=timeout - count)
