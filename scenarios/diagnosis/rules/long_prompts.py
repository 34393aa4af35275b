"""Short requests wait behind the prompts of long ones."""

import numpy as np

from scenarios.assembly.engine_policy import with_chunks
from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.say import count, seconds
from scenarios.diagnosis.timeline import covered
from simulator.results.records import Floats

LONG = 8
"""A prompt is long from so many times the median on: what it computes, some four others could have had twice."""
FEW = 0.2
"""Long prompts are few: at most one in five. More of them are the load itself, and no exception to it."""
MOST_COVERED = 0.5
"""Share of the busy time in which long prompts may be computed. Beyond it they are most of the load."""


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    requests, late = evidence.records.requests, evidence.late
    began = ~np.isnan(requests.first_token_s)
    if not began.any():
        return None
    median = float(np.median(requests.input_tokens[began]))
    own_s = requests.input_tokens * evidence.prices.token_s[np.maximum(requests.replica, 0)]
    # A prompt that takes no longer than a tenth of the shortest wait allowed makes nobody late by itself.
    felt = own_s > 0.1 * evidence.late.wait_limit_s if np.isfinite(evidence.late.wait_limit_s) else own_s > 0
    long = began & (requests.input_tokens >= LONG * median) & felt
    if not long.any() or long.sum() > FEW * len(long):
        return None
    replica = requests.replica[long]
    starts = requests.scheduled_s[long]
    ends = requests.first_token_s[long] - evidence.records.front_end_of(np.flatnonzero(long))
    behind, busy = evidence.covered_s(starts, ends, replica), evidence.busy_s
    total = sum(
        float(covered(s := starts[replica == each], e := ends[replica == each], s.min()[None], e.max()[None])[0])
        for each in np.unique(replica).tolist()
    )
    if total > MOST_COVERED * busy:
        return None
    short = ~long[late.row]
    behind = np.where(short, behind, 0.0)
    # Where prompts are computed in steps of their own, a long one keeps all answers from going on.
    rows = evidence.records.rows
    stopped = (rows.decoding == 0) & (rows.prefilling > 0) & (evidence.inside(replica, starts, ends) > 0)
    slowed = np.where(short, evidence.after_first_s(stopped), 0.0)
    blocked = int(((behind + slowed)[left_s > 0] > 0).sum())
    if not blocked:
        return None
    mean, mean_s = float(requests.input_tokens[long].mean()), float((ends - starts).mean())
    behind_s = float((behind + slowed)[behind + slowed > 0].mean())
    words = (
        f"{count(long.sum())} prompts of {count(mean)} tokens on average "
        f"(median of all: {count(median)}) took {seconds(mean_s)} each to compute, and "
        f"{count(blocked)} late requests stood behind one of them, for {seconds(behind_s)} on average"
    )
    numbers = {
        "long_prompts": int(long.sum()),
        "mean_long_prompt_tokens": mean,
        "median_prompt_tokens": median,
        "mean_seconds_of_a_long_prompt": mean_s,
        "share_of_busy_time": total / busy if busy else 0.0,
        "requests_behind": blocked,
    }
    return Claim(words, numbers, _remedies(evidence), waited_s=behind, slowed_s=slowed)


def _remedies(evidence: Evidence) -> list[Remedy]:
    engine = evidence.scenario.engine
    takes, found = engine.takes(), []
    budget = int(engine.parameter("max_num_batched_tokens") or 2048)
    if "long_prefill_token_threshold" in takes and not engine.parameter("long_prefill_token_threshold"):
        why = "a long prompt takes at most a quarter of a step, and others are begun beside it"
        found.append(Remedy({"engine.long_prefill_token_threshold": max(budget // 4, 16)}, why))
    if change := with_chunks(evidence.scenario):
        if budget > 2048:
            change["engine.max_num_batched_tokens"] = 2048
        why = "compute prompts in chunks beside the answers"
        if "engine.policy" in change or "long_prefill_token_threshold" in takes:
            change["engine.long_prefill_token_threshold"] = 512
            why = f"{why}, of a long one a quarter of a step"
        found.append(Remedy(change, why))
    if "order" in takes and engine.parameter("order") == "fcfs":
        found.append(Remedy({"engine.order": "sjf"}, "begin short requests before long ones"))
    return found


RULE = Rule(
    "long-prompts",
    "head-of-line blocking by long prompts",
    "Short requests wait while a few long prompts that came before them are computed.",
    f"The seconds that late short requests waited while a long prompt was computed on their replica. A prompt is long "
    f"if it has at least {LONG} times the median tokens and takes at least a tenth of the shortest allowed wait. At "
    "most one request in five may be long, with at most half of the busy time; otherwise they are the load itself.",
    "a limit on the chunk of a long prompt (`long_prefill_token_threshold`), chunks if prompts are computed whole",
    _find,
)
