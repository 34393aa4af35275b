"""The token budget of a step: too small to compute prompts in time, or so large that answers halt."""

import numpy as np

from scenarios.assembly.engine_policy import with_chunks
from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.rules.memory_bound import MOSTLY_FIXED, gain_of
from scenarios.diagnosis.say import count, seconds
from simulator.percent import percent
from simulator.policies import DEFAULT_POLICY
from simulator.results.records import Floats

_LARGER = 8.0  # times the budget that "large enough" is thought of: beyond it the fixed part hardly counts


def _small(evidence: Evidence, left_s: Floats) -> Claim | None:
    rows, prices = evidence.records.rows, evidence.prices
    budget = prices.budget[rows.replica]
    full = (rows.prefilling > 0) & (rows.tokens >= budget) & ~evidence.no_memory
    if not full.any():
        return None
    prompts_s = rows.prefill_tokens * prices.token_s[rows.replica] / np.maximum(evidence.row_s, 1e-12)
    step_s = evidence.row_s / rows.repeat
    plain = np.minimum(evidence.plain_step_for_late_s() / np.maximum(step_s, 1e-12), 1.0)
    # By the price of a token, and by the steps without prompts that there were: long contexts cost more than the price.
    fixed = min(1 - evidence.seen(prompts_s, full), evidence.seen(plain, full))
    if fixed < MOSTLY_FIXED:
        return None
    gain = gain_of(fixed, _LARGER)
    mean = float(prices.budget.mean())
    time_full = float(evidence.row_s[full].sum()) / evidence.busy_s
    words = (
        f"steps full of their {count(mean)} tokens take {percent(time_full)} of the busy time, and "
        f"steps without prompts would cost {percent(fixed)} of that: prompts take many times the steps they need"
    )
    numbers = {"max_num_batched_tokens": mean, "busy_time_in_full_steps": time_full, "step_time_without_prompts": fixed}
    # The smallest chunk in which prompts cost more than the step does without: the two halves of the limit.
    even = float((prices.base_s / np.maximum(prices.token_s, 1e-12)).mean())
    larger = int(2 ** np.ceil(np.log2(max(2 * even, 2 * mean))))
    remedies = [Remedy({"engine.max_num_batched_tokens": larger}, "chunks whose prompts cost more than their steps")]
    waited = evidence.before_first_s(full) * evidence.relieved(gain)
    return Claim(words, numbers, remedies, waited_s=waited)


def _large(evidence: Evidence, left_s: Floats) -> Claim | None:
    limit_s = evidence.late.pace_limit_s
    rows = evidence.records.rows
    if not np.isfinite(limit_s) or not evidence.late.paces.any():
        return None
    step_s = evidence.row_s / rows.repeat
    prompts = (rows.prefilling > 0) & (rows.prefill_tokens > 0) & (rows.running > rows.prefilling)
    over = prompts & (step_s > limit_s)
    if not over.any():
        return None
    without = evidence.plain_step_for_late_s()

    def longer(than_s: float) -> Floats:
        """Return the share of each row's steps beyond this time, where they compute prompts beside answers."""
        return np.where(prompts, np.maximum(1 - than_s / np.maximum(step_s, 1e-12), 0.0), 0.0)

    longer_s = float(np.dot(evidence.row_s, longer(evidence.plain_step_s)))
    share = min(longer_s / max(evidence.busy_s, 1e-12), 0.999)
    if without / (1 - share) > limit_s:
        return None  # prompts spread evenly over the steps would make answers late too: that is the load
    slowed = evidence.after_first_s(np.where(over, longer(without), 0.0))
    mean_s = float(evidence.row_s[over].sum() / rows.repeat[over].sum())
    tokens = evidence.mean(rows.prefill_tokens, over)
    words = (
        f"{count(over.sum())} steps with {count(tokens)} prompt tokens on average took "
        f"{seconds(mean_s)}, and no answer gets a token meanwhile; the limit is {seconds(limit_s)}, a step without "
        f"prompts takes {seconds(without)}"
    )
    numbers = {
        "steps_over_the_limit": int(over.sum()),
        "mean_prompt_tokens_in_them": tokens,
        "mean_step_s": mean_s,
        "step_without_prompts_s": without,
        "limit_s": limit_s,
    }
    return Claim(words, numbers, _smaller(evidence, limit_s, without), slowed_s=slowed)


def _smaller(evidence: Evidence, limit_s: float, without: float) -> list[Remedy]:
    """Propose a budget whose steps stay within the limit, by the price of a token; chunks, where prompts are whole."""
    engine, traits = evidence.scenario.engine, evidence.traits
    token_s = float(evidence.prices.token_s.mean())
    fits = max((limit_s - without) * 0.8 / max(token_s, 1e-12), 64)
    smaller = int(2 ** np.floor(np.log2(fits)))
    if traits.whole_prompts or traits.pauses_decodes or "max_num_batched_tokens" not in engine.takes():
        change = {**with_chunks(evidence.scenario), "engine.max_num_batched_tokens": smaller}
        return [Remedy(change, "prompts in chunks beside the answers, small enough for the limit")]
    least = max(int(engine.parameter("max_num_seqs", 256) or 256), 64)
    first = max(min(smaller, int(engine.parameter("max_num_batched_tokens")) // 2), least)
    found = [Remedy({"engine.max_num_batched_tokens": first}, "a step of so many tokens stays within the limit")]
    if first // 4 >= least:
        found.append(Remedy({"engine.max_num_batched_tokens": first // 4}, "a quarter of that"))
    return found


TOO_SMALL = Rule(
    "chunk-too-small",
    "chunk too small",
    "Prompts are computed in such small chunks that most of a step's time would be needed without them too.",
    "The seconds until the first token of late requests in which steps computed all the tokens that a step may. The "
    "same steps without prompts would cost at least half of their time.",
    "a larger `max_num_batched_tokens`",
    _small,
)
TOO_LARGE = Rule(
    "chunk-too-large",
    "chunk too large",
    "Steps with prompts in them take longer than the gap that the SLO allows between two tokens.",
    "Steps with prompts that take longer than the limit of TPOT or ITL, although the same prompts spread evenly over "
    "all steps would keep it: a step without prompts / (1 - the share of the busy time that prompts take). The extra "
    "time of these steps counts, after the first token of late requests.",
    f"a smaller `max_num_batched_tokens`; chunks (`{DEFAULT_POLICY}`) if prompts are computed whole",
    _large,
)
