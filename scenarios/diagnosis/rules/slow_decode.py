"""Tokens come more slowly than the SLO allows, though nothing interrupts them."""

import numpy as np

from scenarios.assembly.engine_policy import with_chunks
from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.rules.transient_overload import more_replicas
from scenarios.diagnosis.say import count, seconds
from simulator.percent import percent
from simulator.results.records import Floats


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    late, rows = evidence.late, evidence.records.rows
    slow = late.paces & (left_s > 0)
    if not slow.any():
        return None
    # The time of one token as the late requests saw it, with the steps that only computed prompts.
    paced, steps = evidence.paced_s, rows.repeat * (rows.decoding > 0)
    seen_s = float(paced.sum())
    tokens = float((paced * steps / np.maximum(evidence.row_s, 1e-12)).sum())
    if not tokens:
        return None
    step_s, running = seen_s / tokens, float(np.dot(paced, rows.running)) / seen_s
    prompts = max(1 - evidence.plain_step_for_late_s() / step_s, 0.0)
    base_s = float(evidence.prices.base_s.mean())
    limit_s = late.pace_limit_s
    beyond = f" (the limit is {seconds(limit_s)})" if np.isfinite(limit_s) else ""
    words = (
        f"late requests got a token every {seconds(step_s)} on average{beyond}, with {count(running)} requests running "
        f"and {percent(prompts)} of the time taken by prompts; a step with a single one takes {seconds(base_s)}"
    )
    numbers = {"mean_gap_s": step_s, "step_of_one_s": base_s, "running": running, "time_taken_by_prompts": prompts}
    remedies = []
    if prompts >= 0.5 and evidence.traits.pauses_decodes:
        why = "compute prompts beside the answers, and not before them"
        remedies.append(Remedy(with_chunks(evidence.scenario), why))
    if np.isfinite(limit_s) and base_s < limit_s and running >= 2 and prompts < 0.5:
        remedies.append(Remedy({"engine.max_num_seqs": max(int(running / 2), 1)}, "smaller batches have faster steps"))
    remedies += more_replicas(evidence)
    return Claim(words, numbers, remedies, slowed_s=late.last_s - late.first_s)


RULE = Rule(
    "slow-decode",
    "decode steps beyond the SLO",
    "Steps are too slow for the SLO: the batch is too large, or the GPU is not fast enough.",
    "The seconds after the first token of late requests that no rule before it explains.",
    "fewer slots, more replicas, a faster GPU, or more GPUs in a replica",
    _find,
)
