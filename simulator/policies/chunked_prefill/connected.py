"""vLLM's `Scheduler.schedule` with a KV connector (vllm/v1/core/sched/scheduler.py of 0.33): what differs in its loops.

Requests that hold blocks come first (1062): a load under way is passed over, and one that has ended is settled and
admitted like any other. A waiting request is looked up behind its local hit (1139); where the connector does not know
yet, others pass it (1149). A load between steps takes blocks and no tokens, if these fit beside what all prompts in
flight still need (1420). A running request takes no victim whose blocks a step in flight writes (982).
"""

from typing import cast

from simulator.connector import ConnectorView
from simulator.division import cdiv
from simulator.plan import Chunk, StepPlan, View
from simulator.policies.chunked_prefill.drafted import Left, schedule_running
from simulator.policies.chunked_prefill.limits import VllmLimits, longest_chunk
from simulator.policies.parts.reservations import watermark_blocks
from simulator.request import RequestView
from simulator.speculative.speculation import Drafting


def connected_step(view: View, limits: VllmLimits, drafting: Drafting, connector: ConnectorView) -> StepPlan:
    """The plan of a step: a chunk for each request that it schedules. Admissions follow one by one."""
    if view.step_tokens is not None:
        return _admit_next(view, limits, connector, cast("Left", view.note))
    chunks, preempted, passed, left = schedule_running(view, limits, drafting)
    waits = len(view.waiting) > 0 or len(connector.holding) > 0
    more = not preempted and left.tokens > 0 and waits
    return StepPlan(
        preempt=preempted,
        prefill=tuple(chunks),
        decode=False,
        paused=passed,
        more=more,
        note=left,
        tried=left.fenced or None,
    )


def _admit_next(view: View, limits: VllmLimits, connector: ConnectorView, left: Left) -> StepPlan:
    """One admission, one load, or one load that has ended: a part of a step's plan. Or nothing, which is its last."""
    if left.tokens <= 0 or len(view.running) >= limits.slots:
        return _NO_MORE
    passed = [*left.passed]
    kept = watermark_blocks(limits.watermark, view.num_blocks + 1) if view.running else 0
    available = view.num_free_blocks - kept
    threshold = longest_chunk(view, limits, len(connector.holding))
    for request in (*connector.holding, *view.waiting):
        if request in passed:
            continue
        if connector.is_loading(request):
            passed.append(request)
            continue
        if not connector.is_settled(request):
            return StepPlan(decode=False, tried=(request,), more=True, note=left._replace(passed=tuple(passed)))
        later, held, computed, loaded = False, request.num_blocks, request.num_computed_tokens, 0
        if not held:
            local, held = _hit(view, request)
            found = connector.look(request, local)
            if found is None:
                passed.append(request)
                continue
            later, computed, loaded = found.later, local + found.tokens, found.tokens
        tokens = 0 if later else request.num_tokens - computed
        if 0 < threshold < tokens:
            tokens = threshold
        if tokens > left.tokens and not limits.in_chunks:
            return _NO_MORE
        tokens = min(tokens, left.tokens)
        whole, needed = _needed(view, request, held, computed, tokens, loaded)
        if limits.tests_whole and whole > available:
            return _NO_MORE
        reserved = _still_needed(view, connector) if later else 0
        if needed > available - reserved:
            return _NO_MORE
        if later:
            passed.append(request)
        note = left._replace(tokens=left.tokens - tokens, passed=tuple(passed))
        return StepPlan(prefill=(Chunk(request, tokens),), decode=False, more=True, note=note)
    return _NO_MORE


def _hit(view: View, request: RequestView) -> tuple[int, int]:
    """Cached leading tokens of a waiting request, and the blocks of these that running requests use."""
    if view.groups is not None:
        return view.groups.hit(request)[0], 0
    hits, unused = view.prefix_hits(request)
    return hits * view.block_size, hits - unused


def _needed(view: View, request: RequestView, held: int, computed: int, tokens: int, loaded: int) -> tuple[int, int]:
    """Free blocks that a request takes to be whole, and with so many `tokens` behind those computed."""
    if view.groups is not None:
        whole = view.groups.blocks_needed(request, 0, loaded, whole=True)
        return whole, view.groups.blocks_needed(request, tokens, loaded)
    size = view.block_size
    return cdiv(request.num_tokens, size) - held, cdiv(computed + tokens, size) - held


def _still_needed(view: View, connector: ConnectorView) -> int:
    """Blocks that the prompts in flight, loads too, lack to be whole."""
    size = view.block_size
    requests: list[RequestView] = [*view.prefilling, *connector.holding]
    if view.groups is not None:
        return sum([view.groups.blocks_lacking(request) for request in requests])
    return sum([max(0, cdiv(request.num_tokens, size) - request.num_blocks) for request in requests])


_NO_MORE = StepPlan(decode=False)
