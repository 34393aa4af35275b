"""Tokens come more slowly than the SLO allows, though nothing interrupts them."""

from __future__ import annotations

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.rules.transient_overload import more_replicas
from scenarios.diagnosis.say import count, seconds
from simulator.results.records import Floats


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    late, rows = evidence.late, evidence.records.rows
    slow = late.paces & (left_s > 0)
    if not slow.any():
        return None
    decoding = rows.decoding > 0
    if not decoding.any():
        return None
    step_s = float(evidence.row_s[decoding].sum() / rows.repeat[decoding].sum())
    running = evidence.mean(rows.running, decoding)
    base_s = float(evidence.prices.base_s.mean())
    limit_s = late.pace_limit_s
    beyond = f", the limit between tokens {seconds(limit_s)}" if np.isfinite(limit_s) else ""
    words = (
        f"a step takes {seconds(step_s)} with {count(running)} requests running, and "
        f"{seconds(base_s)} with one{beyond}"
    )
    numbers = {"mean_step_s": step_s, "step_of_one_s": base_s, "running": running}
    remedies = []
    if np.isfinite(limit_s) and base_s < limit_s and running >= 2:
        remedies.append(Remedy({"engine.max_num_seqs": max(int(running / 2), 1)}, "smaller batches have faster steps"))
    remedies += more_replicas(evidence)
    taken: Floats = np.asarray(late.last_s - late.first_s)
    return Claim(words, numbers, remedies, slowed_s=taken)


RULE = Rule(
    "slow-decode",
    "decode steps beyond the SLO",
    "Steps are too slow for the pace that the SLO asks for: the batch is too large, or the GPU is not fast enough.",
    "What every rule before it leaves of the seconds after the first token of late requests.",
    "fewer slots, replicas, a faster GPU or more of them for a replica",
    _find,
)
