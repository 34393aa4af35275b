"""Prompts: padded, computed whole, behind long ones, or in chunks of the wrong size."""

import numpy as np

from scenarios.assembly.engines import with_chunks
from scenarios.diagnosis.evidence import Claim, Evidence, Remedy, Rule, count, covered, seconds
from scenarios.diagnosis.rules.memory import MOSTLY_FIXED, gain_of
from simulator.metrics.metric import percent
from simulator.policies import DEFAULT_POLICY, PLAIN_POLICY
from simulator.results.records import Floats

# Padding: tokens and slots computed for nothing while requests wait.

WASTE = 0.2
"""Share of the computed tokens that are padding from which on it is a finding: a GPU in five."""


def _find_padding(evidence: Evidence, left_s: Floats) -> Claim | None:
    rows = evidence.records.rows
    tokens, padded = float(np.dot(rows.repeat, rows.tokens)), float(np.dot(rows.repeat, rows.padded_tokens))
    share = padded / tokens if tokens else 0.0
    if share < WASTE:
        return None
    held = float(np.dot(rows.repeat, rows.held)) / max(float(np.dot(rows.repeat, rows.running)), 1.0)
    padding = rows.padded_tokens > 0
    lost = float(np.dot(evidence.row_s, rows.padded_tokens / np.maximum(rows.tokens, 1)))
    running_s = np.minimum(evidence.queued_s(np.ones(len(padding))), evidence.late.queued_s)
    # A request behind a batch that pads waits for its end: it could have had a padded place.
    queued = np.where(evidence.queued_s(padding) > 0, running_s, 0.0)
    words = (
        f"{percent(share)} of the computed tokens are padding, and {percent(held)} of the slots were "
        f"held by finished requests, while others waited for the batch to end"
    )
    numbers = {"padding_of_computed": share, "slots_held_by_finished": held}
    why = "let a request leave as it finishes"
    remedies = [
        Remedy({"engine.policy": DEFAULT_POLICY}, f"{why}, and another take its place at the next step"),
        Remedy({"engine.policy": PLAIN_POLICY}, f"{why}; prompts in steps of their own"),
    ]
    return Claim(
        words, numbers, remedies, waited_s=queued, slowed_s=evidence.after_first_s(padding) * share,
        lost=lost / max(evidence.replica_seconds, 1e-9),
    )  # fmt: skip


PADDING = Rule(
    "padding",
    "padding waste",
    "Prompts are padded to the longest, and finished requests still compute in their slots until the batch ends.",
    f"At least {percent(WASTE)} of the computed tokens are padding. The seconds that late requests waited behind "
    "padded batches count, and that share of the GPU's time is lost.",
    f"a policy that batches by iteration (`engine.policy: {DEFAULT_POLICY}`, `{PLAIN_POLICY}`)",
    _find_padding,
)


# Prompts that are computed whole do not fit into a step beside the answers, and all behind them wait too.


def _find_whole_prompts(evidence: Evidence, left_s: Floats) -> Claim | None:
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
    return Claim(
        words, numbers, _remedies_of_whole_prompts(evidence, longest), waited_s=evidence.queued_s(blocked), lost=lost
    )


def _share(evidence: Evidence, rows: Floats) -> float:
    return float(evidence.row_s[rows].sum()) / max(evidence.busy_s, 1e-12)


def _remedies_of_whole_prompts(evidence: Evidence, longest: int) -> list[Remedy]:
    slots = int(evidence.prices.slots.max())
    found = [Remedy({"engine.max_num_batched_tokens": longest + slots}, "the longest prompt and an answer a slot")]
    if change := with_chunks(evidence.scenario):
        found.append(Remedy(change, "of a prompt what fits, and the rest in the next step"))
    return found


WHOLE_PROMPTS = Rule(
    "whole-prompts",
    "whole prompts beside answers",
    "Prompts are computed whole, and a step has too few tokens for the longest beside the answers: it waits until "
    "enough of them have ended, and all behind it wait too.",
    "The seconds that late requests waited in steps without prompts, with slots and memory free, where the longest "
    "prompt of the run and the answers of the step are more than `max_num_batched_tokens`. What the fixed part of "
    "these steps cost more than it would in the fullest batch of the run is lost.",
    "`max_num_batched_tokens` of the longest prompt and the slots together, or chunks (`enable_chunked_prefill`)",
    _find_whole_prompts,
)


# Short requests wait behind the prompts of long ones.

LONG = 8
"""A prompt is long from so many times the median on: what it computes, some four others could have had twice."""
FEW = 0.2
"""Long prompts are few: at most one in five. More of them are the load itself, and no exception to it."""
MOST_COVERED = 0.5
"""Share of the busy time in which long prompts may be computed. Beyond it they are most of the load."""


def _find_long_prompts(evidence: Evidence, left_s: Floats) -> Claim | None:
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
    return Claim(words, numbers, _remedies_of_long_prompts(evidence), waited_s=behind, slowed_s=slowed)


def _remedies_of_long_prompts(evidence: Evidence) -> list[Remedy]:
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


LONG_PROMPTS = Rule(
    "long-prompts",
    "head-of-line blocking by long prompts",
    "Short requests wait while a few long prompts that came before them are computed.",
    f"The seconds that late short requests waited while a long prompt was computed on their replica. A prompt is long "
    f"if it has at least {LONG} times the median tokens and takes at least a tenth of the shortest allowed wait. At "
    "most one request in five may be long, with at most half of the busy time; otherwise they are the load itself.",
    "a limit on the chunk of a long prompt (`long_prefill_token_threshold`), chunks if prompts are computed whole",
    _find_long_prompts,
)


# The token budget of a step: too small to compute prompts in time, or so large that answers halt.

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
