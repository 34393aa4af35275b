"""Prompts that are computed whole do not fit into a step beside the answers, and all behind them wait too."""

import numpy as np

from scenarios.assembly.engine_policy import with_chunks
from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.say import count
from simulator.percent import percent
from simulator.results.records import Floats


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    if not evidence.traits.whole_prompts or evidence.traits.pauses_decodes:
        return None
    rows, prompts = evidence.records.rows, evidence.records.requests.input_tokens
    budget = evidence.prices.budget[rows.replica]
    waits = (rows.waiting > 0) & (rows.prefilling == 0) & (rows.decoding > 0) & ~evidence.no_memory & ~evidence.no_slot
    blocked = waits & (prompts.max(initial=0) + rows.decoding > budget)
    if not blocked.any():
        return None
    most, longest, limit = int(rows.decoding.max()), int(prompts.max()), int(budget.min())
    running = evidence.mean(rows.running, blocked)
    long = prompts + most > limit
    words = (
        f"{count(long.sum())} of {count(len(prompts))} prompts, of up to {count(longest)} tokens, do not fit into a "
        f"step of {count(limit)} beside {count(most)} answers: no request could start during "
        f"{percent(_share(evidence, blocked))} of the busy time, with {count(running)} running"
    )
    numbers = {
        "prompts_too_long_beside_answers": int(long.sum()),
        "longest_prompt_tokens": longest,
        "max_num_batched_tokens": limit,
        "most_answers_in_a_step": most,
        "busy_time_in_which_nobody_was_begun": _share(evidence, blocked),
        "running_meanwhile": running,
    }
    # The fixed part of a step is paid for few requests: a full batch would have shared it.
    spared = np.where(blocked, evidence.base_row_s * (1 - rows.running / max(int(rows.running.max()), 1)), 0.0)
    lost = float(spared.sum()) / max(evidence.replica_seconds, 1e-9)
    return Claim(words, numbers, _remedies(evidence, longest), waited_s=evidence.queued_s(blocked), lost=lost)


def _share(evidence: Evidence, rows: Floats) -> float:
    return float(evidence.row_s[rows].sum()) / max(evidence.busy_s, 1e-12)


def _remedies(evidence: Evidence, longest: int) -> list[Remedy]:
    slots = int(evidence.prices.slots.max())
    found = [Remedy({"engine.max_num_batched_tokens": longest + slots}, "the longest prompt and an answer a slot")]
    if change := with_chunks(evidence.scenario):
        found.append(Remedy(change, "of a prompt what fits, and the rest in the next step"))
    return found


RULE = Rule(
    "whole-prompts",
    "whole prompts beside answers",
    "Prompts are computed whole, and a step has too few tokens for the longest beside the answers: it waits until "
    "enough of them have ended, and all behind it wait too.",
    "The seconds that late requests waited in steps without prompts, with slots and memory free, where the longest "
    "prompt of the run and the answers of the step are more than `max_num_batched_tokens`. What the fixed part of "
    "these steps cost more than it would in the fullest batch of the run is lost.",
    "`max_num_batched_tokens` of the longest prompt and the slots together, or chunks (`enable_chunked_prefill`)",
    _find,
)
