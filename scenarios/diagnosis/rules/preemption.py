"""Running requests are preempted again and again."""

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.rules.memory_bound import more_memory
from scenarios.diagnosis.say import count, seconds
from simulator.percent import percent
from simulator.results.records import Floats

STORM = 0.1
"""Share of the requests that were preempted from which on it is a storm, and no accident of a full moment."""


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
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
        words, numbers, _remedies(evidence), waited_s=waited, slowed_s=requeued, lost=share_again,
        lost_of="tokens computed",
    )  # fmt: skip


def _remedies(evidence: Evidence) -> list[Remedy]:
    records, requests = evidence.records, evidence.records.requests
    # Without preemption, a slot holds a prompt and half of its answer, which is there on average.
    held = float((requests.input_tokens + requests.output_tokens / 2).mean()) / records.block_size + 1
    fit = max(int(records.num_blocks / held), 1)
    fewer = Remedy({"engine.max_num_seqs": fit}, "run as many requests as fit with half of their answers")
    return [*([fewer] if fit < int(records.rows.running.max(initial=0)) else []), *more_memory(evidence)]


RULE = Rule(
    "preemption-storm",
    "a preemption storm",
    "Memory runs out while requests run: they lose their KV, wait again, and compute it again.",
    f"At least {percent(STORM)} of the requests were preempted, not by more important ones. The seconds that late "
    "requests waited again count, and the part of the queue that the recomputed tokens caused.",
    "fewer slots, so that requests fit with their answers; more memory for the KV cache",
    _find,
)
