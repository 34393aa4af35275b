"""Drafts of data-parallel ranks that step together.

As in vLLM 0.33 (`sync_cudagraph_and_dp_padding` in vllm/v1/worker/gpu/dp_utils.py, `execute_dummy_batch` in
vllm/v1/worker/gpu_worker.py): ranks leave drafting out together or not at all, and a rank with nothing to compute,
which computes a batch of one request's verify step, does not agree to it.
"""

from collections.abc import Sequence

from simulator.engine.in_flight import InFlight
from simulator.engine.speculative.step import VerifyStep
from simulator.timing.cost import StepShape


def dummy_verify(drafts: int) -> StepShape:
    """The shape of an idle rank's batch: a request without context verifies so many drafts, and is given as many."""
    return StepShape(1, 1 + drafts, draft_seqs=1, draft_tokens=drafts, drafted_tokens=drafts)


def draft_together(steps: Sequence[InFlight | None]) -> None:
    """Let all ranks draft at the end of their common step, unless all of them agree to leave it out."""
    drafting = [step for step in steps if isinstance(step, VerifyStep) and step.scheduled]
    if len(drafting) == len(steps) and all(step.skips_drafts for step in drafting):
        return
    for step in drafting:
        if step.skips_drafts:
            step.shape = step.shape._replace(drafted_tokens=step.next_drafts * len(step.scheduled))
