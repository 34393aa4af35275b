"""Memory: the KV cache is full long before the slots are, and running requests are preempted again and again."""

import numpy as np

from scenarios.diagnosis.evidence import Claim, Evidence, Remedy, Rule, count, seconds
from simulator.errors import InputError
from simulator.metrics.metric import percent
from simulator.policies import DEFAULT_POLICY
from simulator.results.records import Floats

# Low occupancy: the KV cache is full long before the slots are, or the batch would pay.

MOSTLY_FIXED = 0.5
"""The batch is small if a batch of one would cost at least this share of the steps' time as well.

A step of b + m seconds, of which b does not depend on the batch, takes b + 2m with twice the batch, which so serves
2 (b + m) / (b + 2m) times as much: a third more at b = m, the limit here.
"""
ROOM = 2.0
"""Memory (or slots) for so many times the batch must be free. With less the two are in balance, and more of one gains
little."""


def gain_of(fixed: float, factor: float) -> float:
    """Return how much more a batch `factor` times as large serves; `fixed` is the share of a step that stays."""
    return factor / (fixed + (1 - fixed) * factor)


def more_memory(evidence: Evidence) -> list[Remedy]:
    """Propose more blocks for the KV cache: the unused memory of the GPUs, then twice the GPUs."""
    hardware = evidence.scenario.hardware
    found = []
    if hardware.num_gpu_blocks is None and hardware.gpu_memory_utilization < 0.85:
        found.append(Remedy({"hardware.gpu_memory_utilization": 0.92}, "leave the KV cache the memory that is unused"))
    if hardware.num_gpu_blocks is not None and 4 * hardware.num_gpu_blocks <= (fits := _fits(evidence)):
        why = f"the GPU has room for {count(fits)} KV blocks, and the scenario gives fewer"
        found.append(Remedy({"hardware.num_gpu_blocks": fits}, why))
    whole = 2 * hardware.tensor_parallel
    try:
        evidence.scenario.resolve_model().local_kv_heads(whole)
    except InputError:
        return found
    change: dict[str, int] = {"hardware.tensor_parallel": whole}
    if hardware.num_gpu_blocks is not None:
        change["hardware.num_gpu_blocks"] = 2 * hardware.num_gpu_blocks
    found.append(Remedy(change, "twice the GPUs hold the weights once and more than twice the KV blocks"))
    return found


def _fits(evidence: Evidence) -> int:
    """Return the KV blocks that the scenario's GPU would hold if the scenario gave no number."""
    from scenarios.assembly.replica_parts import build
    from scenarios.schema.loader import load

    data = evidence.scenario.model_dump(exclude_unset=True)
    data["hardware"] = {**data.get("hardware", {}), "num_gpu_blocks": None}
    try:
        return build(load(data, check_files=False)).kv.num_gpu_blocks
    except InputError:
        return 0


def _find_memory_bound(evidence: Evidence, left_s: Floats) -> Claim | None:
    full = evidence.no_memory
    if not full.any():
        return None
    fixed = evidence.fixed_share(full)
    if fixed < MOSTLY_FIXED:
        return None
    rows, records = evidence.records.rows, evidence.records
    running = evidence.seen(rows.running, full)
    waited = evidence.queued_s(full)
    time_full = float(evidence.row_s[full].sum()) / max(evidence.busy_s, 1e-9)
    slots = float(evidence.prices.slots.mean())
    room = slots / max(running, 1.0)
    if room < ROOM:
        return None
    gain = gain_of(fixed, room)
    words = (
        f"with all {count(records.num_blocks)} KV blocks taken ({percent(time_full)} of the "
        f"busy time), {count(running)} of {count(slots)} slots ran; {percent(fixed)} of a step is fixed "
        f"cost: memory for all slots would serve {count(gain)}x"
    )
    if evidence.traits.reserves:
        words += "; the policy reserves memory for answers that are not there yet"
    numbers = {
        "busy_time_without_free_blocks": time_full,
        "running_while_full": running,
        "slots": slots,
        "kv_blocks": records.num_blocks,
        "step_time_of_a_batch_of_one": fixed,
        "gain_of_memory_for_all_slots": gain,
    }
    remedies = more_memory(evidence)
    if evidence.traits.reserves:
        remedies.insert(0, Remedy({"engine.policy": DEFAULT_POLICY}, "take memory as answers grow"))
    return Claim(words, numbers, remedies, waited_s=waited * evidence.relieved(gain))


MEMORY_BOUND = Rule(
    "memory-bound",
    "low occupancy: memory-bound",
    "Requests wait because the KV cache is full, while the batch is too small to make good use of the GPU.",
    "The seconds that late requests waited while fewer blocks were free than one of them takes. Two conditions hold. A "
    "batch of one would cost at least half of the time of those steps: twice the batch then serves a third more; with "
    "a smaller share the GPU itself is too small. And there are slots for twice the running requests. In an overload "
    "only the requests count that a batch filling the slots would have served.",
    "more memory for KV (`gpu_memory_utilization`, `tensor_parallel`), a policy that does not reserve memory ahead",
    _find_memory_bound,
)


# Running requests are preempted again and again.

STORM = 0.1
"""Share of the requests that were preempted from which on it is a storm, and no accident of a full moment."""


def _find_preemption(evidence: Evidence, left_s: Floats) -> Claim | None:
    requests, rows = evidence.records.requests, evidence.records.rows
    hit = requests.preemptions > 0
    share = float(hit.mean()) if len(hit) else 0.0
    if share < STORM or len(np.unique(requests.priority[hit])) < len(np.unique(requests.priority)) > 1:
        return None  # displaced by more important ones: what a priority is for
    computed = float(np.dot(rows.repeat, rows.tokens))
    again = float(requests.recomputed_tokens.sum())
    # Tokens computed again are prompt tokens, priced as such; a swap costs the time that its blocks take to move.
    lost_s = again * evidence.prompt_token_s
    lost = min(lost_s / evidence.busy_s, 0.99) if evidence.busy_s else 0.0
    row = evidence.late.row
    requeued, mean_s = requests.requeued_s[row], float(requests.requeued_s[hit].mean())
    queued = evidence.queued_s(evidence.no_memory) * evidence.relieved(1 / (1 - lost))
    waited = queued + np.where(np.isnan(requests.first_token_s[row]), requeued, 0.0)
    share_again = again / computed if computed else 0.0
    words = (
        f"{count(float(requests.preemptions.sum()))} preemptions of {percent(share)} of the "
        f"requests, {percent(share_again)} of all tokens computed again; the preempted waited "
        f"{seconds(mean_s)} more on average"
    )
    numbers = {
        "preemptions": int(requests.preemptions.sum()),
        "preempted_requests": share,
        "recomputed_tokens": int(again),
        "recomputed_of_computed": share_again,
        "mean_wait_again_s": mean_s,
    }
    return Claim(
        words, numbers, _remedies_of_preemption(evidence), waited_s=waited, slowed_s=requeued, lost=share_again,
        lost_of="tokens computed",
    )  # fmt: skip


def _remedies_of_preemption(evidence: Evidence) -> list[Remedy]:
    records, requests = evidence.records, evidence.records.requests
    # Without preemption, a slot holds a prompt and half of its answer, which is there on average.
    held = float((requests.input_tokens + requests.output_tokens / 2).mean()) / records.block_size + 1
    fit = max(int(records.num_blocks / held), 1)
    fewer = Remedy({"engine.max_num_seqs": fit}, "run as many requests as fit with half of their answers")
    return [*([fewer] if fit < int(records.rows.running.max(initial=0)) else []), *more_memory(evidence)]


PREEMPTION = Rule(
    "preemption-storm",
    "a preemption storm",
    "Memory runs out while requests run: they lose their KV, wait again, and compute it again.",
    f"At least {percent(STORM)} of the requests were preempted, not by more important ones. The seconds that late "
    "requests waited again count, and the part of the queue that the recomputed tokens caused.",
    "fewer slots, so that requests fit with their answers; more memory for the KV cache",
    _find_preemption,
)
