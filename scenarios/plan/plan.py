"""Make a plan: candidates, best settings for a load, answers, best first, what nobody can tell apart, advice."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scenarios.assembly.engines import engine_keys, policy_traits, with_chunks
from scenarios.assembly.replica_parts import build
from scenarios.diagnosis.evidence import HOST_GIB, load_token_s, prompt_token_s
from scenarios.plan.answer import Answer, Plan, difference, with_rate_at_best
from scenarios.plan.bottleneck import Shares
from scenarios.plan.candidate import BUDGET, POLICY, SEQS, TENSOR_PARALLEL, Candidate, firsts, space
from scenarios.plan.goal import Goal
from scenarios.plan.rates import PIECE, Experience, causes, find_rate, find_replicas, short_rate
from scenarios.plan.search import rounded
from scenarios.plan.text import described, rate_text
from scenarios.plan.trial import Keeper, Laboratory, Traffic, Trial, prediction_of
from scenarios.prediction.prediction import check_coverage
from scenarios.schema.engine import DEFAULT_BUDGET
from scenarios.schema.scenario import Scenario
from scenarios.studies.study import Axis, Setting
from simulator.errors import InputError
from simulator.metrics.metric import Value

# Find the best settings for a load: all on short runs, the better third on longer ones, the last few on whole ones.

FINALISTS = 5
_SHARE = 3  # one in so many goes on to the next round


def find_config(
    lab: Laboratory, candidates: Sequence[Candidate], experience: Experience, progress: Callable[[int], None]
) -> tuple[list[Answer], list[str]]:
    """Return the answers of the last candidates, and notes on the others (successive halving, Jamieson 2016).

    A candidate's score is its price where it holds at the load, and else how far it misses. The last ones are searched
    for their largest rates, with the same requests, so that they can be told apart, or not.
    """
    left, notes = list(candidates), []
    whole = len(lab.traffic.workload(lab.load, lab.traffic.scenario.seed))
    for piece in [piece for piece in (PIECE // 2, 3 * PIECE) if piece * 2 <= whole] or [0]:
        if len(left) <= FINALISTS:
            break
        keep = max(FINALISTS, math.ceil(len(left) / _SHARE))
        seen: list[_Seen] = []
        for candidate in left:
            if lab.is_spent:
                break
            seen.append(_seen(lab, candidate, piece))
            progress(lab.runs)
        if len(seen) < len(left):
            notes.append(f"the budget ended in the short runs: {len(left) - len(seen)} candidates were not tried")
        different = _different(seen, lab.traffic.scenario)
        if equal := len(seen) - len(different):
            notes.append(f"{equal} of {len(seen)} candidates had the same short runs as another, and went no further")
        left = [each.candidate for each in sorted(different, key=lambda each: each.score)[:keep]]
    left = left[:FINALISTS] if len(candidates) > FINALISTS else left
    if len(left) < len(candidates):
        notes.append(f"{len(candidates)} candidates on short runs, the best {len(left)} on whole ones")
    answers = []
    for candidate in left:
        answers.append(_at_load(lab, candidate, experience))
        progress(lab.runs)
    if len(left) < len(candidates) and answers and not any(answer.feasible for answer in answers):
        answers += _between(lab, answers, experience)
    return answers, notes


def _between(lab: Laboratory, answers: Sequence[Answer], experience: Experience) -> list[Answer]:
    """Try candidates between the steps of the grid where none holds, for one that misses by less.

    A budget of tokens trades the time to the first token against the gaps between the next ones, so the largest rate
    lies where both limits are met by as little. The neighbours of the budget with the largest rate are tried where it
    fails, a little above that rate, then theirs.
    """
    known = [answer for answer in answers if answer.bounds is not None]
    best = max(known or answers, key=lambda answer: (answer.bounds.value if answer.bounds else 0.0, -answer.excess))
    start = best.candidate.scenario.engine.parameter("max_num_batched_tokens")
    failing = min((t for t in best.trials if not t.holds and not t.stopped), key=lambda t: t.rate, default=None)
    if not isinstance(start, int) or failing is None:
        return []
    found, excess, at = best.candidate, failing.excess, start
    for part in (4, 8):
        budgets = (at - at // part, at + at // part, at + 2 * (at // part))
        others = [best.candidate.with_settings({BUDGET: budget}) for budget in budgets if budget >= 16]
        found, excess = _least_excess(lab, failing.rate, (found, excess), others)
        at = found.scenario.engine.parameter("max_num_batched_tokens")
    seqs = found.scenario.engine.parameter("max_num_seqs")
    if isinstance(seqs, int):  # another budget fills another batch
        others = [found.with_settings({SEQS: seqs * factor}) for factor in (2, 4)]
        found, _ = _least_excess(lab, failing.rate, (found, excess), others)
    if any(found.settings == answer.candidate.settings for answer in answers):
        return []
    return [_at_load(lab, found, experience)]


def _least_excess(
    lab: Laboratory, rate: float, best: tuple[Candidate, float], others: Iterable[Candidate]
) -> tuple[Candidate, float]:
    """Return the candidate that misses the goals by least at a rate, and its excess; `best` where no other does."""
    for candidate in others:
        if not lab.is_spent:
            excess = lab.run(candidate, rate, early_stop=False).excess
            best = (candidate, excess) if excess < best[1] else best
    return best


@dataclass(frozen=True, slots=True)
class _Seen:
    """A candidate after a short run at the load; the lowest score is the best."""

    candidate: Candidate
    score: tuple[float, float, float]
    values: tuple[Value, ...]


def _seen(lab: Laboratory, candidate: Candidate, piece: int) -> _Seen:
    trial = lab.run(candidate, lab.load, piece=piece, early_stop=False)
    price = candidate.usd_per_hour(candidate.scenario.replicas) or 0.0
    score = (0.0, price, trial.excess) if trial.holds else (1.0, trial.excess, price)
    return _Seen(candidate, score, trial.values)


def _different(seen: Sequence[_Seen], base: Scenario) -> list[_Seen]:
    """Keep the candidate that changes least of the scenario, of those with equal results. The order stays.

    A batch that never fills is the same whatever its largest size.
    """
    found: dict[tuple[object, ...], _Seen] = {}
    for each in seen:
        key = each.score, each.values
        if key not in found or _changes(each.candidate, base) < _changes(found[key].candidate, base):
            found[key] = each
    return list(found.values())


def _changes(candidate: Candidate, base: Scenario) -> int:
    """Count the keys of the engine that a candidate sets to another value than the scenario."""
    keys = [key for key in candidate.settings if key.startswith("engine.") and key != POLICY]
    changed = [key for key in keys if candidate.settings[key] != base.engine.parameter(key.removeprefix("engine."))]
    return len(changed) + (candidate.scenario.engine.policy != base.engine.policy)


def _at_load(lab: Laboratory, candidate: Candidate, experience: Experience) -> Answer:
    """Return the answer of a candidate whose search begins at the load."""
    if lab.is_spent:
        note = "The budget ended before this candidate had a whole run."
        return Answer(candidate, False, candidate.scenario.replicas, lab.load, note=note)
    at_load = lab.run(candidate, lab.load, early_stop=False)
    shares = causes(at_load, candidate)
    # The rate to look at first: the load moved by its excess, as if latencies grew with the fourth power of the load.
    guess = rounded(lab.load * math.exp(-max(min(at_load.excess, 1.2), -1.2) / 4))
    answer = find_rate(lab, candidate, experience, guess=guess)
    holds = at_load.holds if answer.bounds is None or len(lab.seeds) == 1 else answer.bounds.value >= lab.load
    return replace(
        answer,
        feasible=holds,
        shown=at_load.bare(),
        load_words=lab.traffic.words(lab.load),
        trials=(at_load.bare(), *answer.trials),
        excess=at_load.excess,
        binding=answer.binding if holds else at_load.worst,
        shares=answer.shares if holds else shares,
    )


# Advise the change that would help a candidate most, tried by a run where it fails.

_BEYOND = 1.08  # times the largest rate: where the candidate should fail
_NEAR = 0.03
_MUCH = 0.1  # of the worst requests' time: a cause with less is not what they wait for
OFFLOAD = "hardware.kv_offload"
_MOST = 3  # changes that are tried
_LEAST_GAIN = 0.02  # of the excess's logarithm: less is no help


def advise(lab: Laboratory, answer: Answer, *, tried: bool) -> str:
    """Advise a change in a sentence. With `tried`, runs of a few changes show which one helps most."""
    if answer.binding is None:
        return ""
    has_content = lab.traffic.workload(answer.load, lab.traffic.scenario.seed).content is not None
    changes = [
        (setting, changed)
        for setting in proposals(answer.candidate, answer.binding, answer.shares, has_content=has_content)
        if (changed := _built(answer.candidate, setting)) is not None
    ][:_MOST]
    if not changes:
        return "No setting is left to change: take another GPU, or more replicas."
    words = [_worded(setting, answer.candidate) for setting, _ in changes]
    if not tried or lab.is_spent:
        return f"May help (not tried): {' or '.join(words)}."
    rate, before = _failing(lab, answer)
    if before.holds:
        return ""
    runs: list[Trial] = []
    for setting, changed in changes:
        replicas = changed.scenario.replicas if "replicas" in setting else answer.replicas
        runs.append(lab.run(changed, rate, replicas=replicas, early_stop=False))
        if runs[-1].holds:
            break
    best = min(range(len(runs)), key=lambda place: runs[place].excess)
    at = f"at {rate_text(rate)} requests/s"
    if runs[best].holds:
        return f"With {words[best]} it still holds {at} (simulated)."
    said = f"No single setting helps {at} (runs: {'; '.join(words)})."
    if runs[best].excess < before.excess - _LEAST_GAIN:
        gain = f"{at} {described(runs[best])}, and {described(before)} without it"
        said = f"{words[best]} helps most, but not enough: {gain} (runs)."
    return f"{said} {_more_replicas(lab, answer, rate)}"


def _failing(lab: Laboratory, answer: Answer) -> tuple[float, Trial]:
    """Find a rate at which the candidate fails, the load or a little above its largest rate, and its run there."""
    rate, seed = answer.load, lab.traffic.scenario.seed
    ran = [t for t in answer.trials if t.replicas == answer.replicas and t.seed == seed and not t.stopped]
    if answer.feasible and answer.bounds is not None:
        rate = rounded(answer.bounds.value * _BEYOND)
        rate = min((trial.rate for trial in ran if abs(trial.rate / rate - 1) < _NEAR), default=rate)
    for _ in range(_MOST):
        before = next((trial for trial in ran if trial.rate == rate), None) or lab.run(
            answer.candidate, rate, replicas=answer.replicas, early_stop=False
        )
        if not before.holds:
            break
        rate = rounded(rate * _BEYOND)
    return rate, before


def _more_replicas(lab: Laboratory, answer: Answer, rate: float) -> str:
    """Say what one more replica would do."""
    if answer.candidate.scenario.fleet is not None:
        return "Another GPU, or a larger fleet."
    more = answer.replicas + 1
    after = lab.run(answer.candidate, rate, replicas=more)
    if not after.holds:
        return "One more replica is not enough either: take another GPU."
    price = answer.candidate.usd_per_hour(more)
    cost = "" if price is None else f", for {price:,.2f} USD/h"
    return f"{more:,} replicas hold there (run){cost}."


def _computing_s(scenario: Scenario) -> float:
    """Return the seconds in which a prompt token is computed."""
    return prompt_token_s(
        build(scenario).cost, int(scenario.engine.parameter("max_num_batched_tokens") or DEFAULT_BUDGET)
    )


def _offload(scenario: Scenario, shares: Shares, *, has_content: bool) -> Iterator[Setting]:
    """Propose to keep KV on the host, where prompts are known and loading is faster, or to stop where its link binds.

    The host has a fair share of a server's memory for each GPU.
    """
    given = scenario.hardware.kv_offload
    if given is not None and shares.bottleneck == "link":
        yield {OFFLOAD: None}
    finds = has_content and scenario.engine.enable_prefix_caching and scenario.fleet is None
    if given is None and finds and load_token_s(scenario) < _computing_s(scenario):
        yield {OFFLOAD: {"host_gib": HOST_GIB * scenario.hardware.tensor_parallel}}


def proposals(candidate: Candidate, binding: Goal, shares: Shares, *, has_content: bool = False) -> Iterator[Setting]:
    """Propose changes that relieve what the worst requests of the binding goal wait for, the likeliest first."""
    scenario = candidate.scenario
    engine = scenario.engine
    seqs, budget = engine.parameter("max_num_seqs"), engine.parameter("max_num_batched_tokens")
    if policy_traits(scenario).whole_prompts:
        yield {**with_chunks(scenario)}
    if binding.latency in ("tpot", "itl"):
        if isinstance(budget, int) and budget >= 256:
            yield {"engine.max_num_batched_tokens": budget // 2}
            yield {"engine.max_num_batched_tokens": budget // 4}
        if isinstance(seqs, int) and seqs >= 16:
            yield {"engine.max_num_seqs": seqs // 2}
    else:
        yield from _offload(scenario, shares, has_content=has_content)
        for cause in sorted(shares.of, key=lambda cause: -shares.of[cause]) or ["compute"]:
            if cause in ("queueing", "memory") and shares.of[cause] < _MUCH:
                continue
            if cause == "queueing" and isinstance(seqs, int):
                yield {"engine.max_num_seqs": seqs * 2}
            elif cause == "memory" and scenario.hardware.gpu_memory_utilization < 0.94:
                yield {"hardware.gpu_memory_utilization": 0.95}
            elif cause == "compute" and isinstance(budget, int):
                yield {"engine.max_num_batched_tokens": budget * 2}
    ranks = scenario.hardware.tensor_parallel
    if scenario.fleet is None and ranks * 2 in scenario.resolve_model().tensor_parallel_choices():
        yield {TENSOR_PARALLEL: ranks * 2}


def _built(candidate: Candidate, setting: Setting) -> Candidate | None:
    """Change a candidate; None where it cannot be built, or its policy does not take the key."""
    keys = [key.removeprefix("engine.") for key in setting if key.startswith("engine.") and key != POLICY]
    if not {*keys} <= {*engine_keys(candidate.scenario.engine.policy, {})}:
        return None
    try:
        found = candidate.with_settings(setting)
        build(found.scenario)
    except InputError:
        return None
    return found


def _worded(setting: Setting, candidate: Candidate) -> str:
    scenario = candidate.scenario
    words = []
    for key, value in setting.items():
        if key == OFFLOAD:
            us = f"{1e6 * load_token_s(scenario):.3g} us to load a token, {1e6 * _computing_s(scenario):.3g} to compute"
            host = "no kv_offload" if value is None else f"kv_offload of {HOST_GIB:g} GiB for each GPU"
            words.append(f"{host} ({us})")
            continue
        section, _, name = key.rpartition(".")
        before = scenario.engine.parameter(name) if section == "engine" else getattr(scenario.hardware, name, None)
        words.append(f"{name} {value} instead of {scenario.engine.policy if key == POLICY else before}")
    return ", ".join(words)


Find = Literal["rate", "replicas", "config"]
FINDS: tuple[Find, ...] = ("rate", "replicas", "config")
SEEDS = 5
"""Seeds of drawn traffic: as many largest rates, between which the interval is taken."""

_TRIED = 1  # answers whose advice is tried by runs
_FEW = 500  # requests: fewer hold no 99th percentile


def make_plan(
    scenario: Scenario,
    goals: Sequence[Goal],
    find: Find = "rate",
    *,
    rate: float | None = None,
    gpus: Sequence[str] = (),
    policies: str = "",
    axes: Sequence[Axis] = (),
    budget_s: float | None = None,
    seeds: int = SEEDS,
    progress: Callable[..., None] | None = None,
    tried: Keeper | None = None,
    confidence: float | None = None,
) -> Plan:
    """Plan for a scenario's traffic. Raises InputError for a space or a rate that cannot be.

    `rate` is the load of `replicas` and `config`, in requests per second, the scenario's unless given; `budget_s` are
    CPU seconds, after which the answers say what was not settled. `progress` is called with the finished candidates and
    their total; for `config`, with the runs so far. What `tried` keeps is not run again. With a `confidence` steps take
    as long as the pessimistic end of the prediction's interval of that probability.
    """
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise InputError(f"a rate is above 0, not {rate:g}", file="--rate")
    if budget_s is not None and not budget_s > 0:
        raise InputError(f"a budget is above 0 seconds, not {budget_s:g}", file="--budget-s")
    traffic, tell = Traffic(scenario), progress or (lambda *_: None)
    if confidence is not None:
        check_coverage(confidence)
    lab = Laboratory(traffic, goals, budget_s, None if rate is None else rounded(rate), seeds, tried, confidence)
    around = space(scenario, gpus=gpus, policies=policies, axes=axes, by_default=find == "config")
    notes = [*around.notes, *_warnings(traffic, goals)]
    refused = [_unanswered(lab, candidate, why) for candidate, why in around.refused]
    candidates = around.candidates
    if find == "config":
        answers, more = find_config(lab, candidates, Experience(), tell)
        notes += more
        refused = refused if not answers else []
    else:
        alone = firsts(candidates)
        different = [candidate for place, candidate in enumerate(candidates) if alone[place] == place]
        places = dict(zip(sorted(set(alone)), _answers(lab, different, find, tell), strict=True))
        answers = [replace(places[first], candidate=candidates[place]) for place, first in enumerate(alone)]
    ranked = _told_apart(_ranked([*answers, *refused], find), find)
    ranked = [with_rate_at_best(lab, answer) for answer in ranked]
    ranked = [replace(answer, advice=advise(lab, answer, tried=place < _TRIED)) for place, answer in enumerate(ranked)]
    if confidence is not None:
        ranked = [_predicted(lab, answer, confidence) for answer in ranked]
        steps = ", ".join(sorted({f"{lab.longer(each.candidate).steps:.2f}" for each in ranked if each.prediction}))
        notes.append(f"sized by the pessimistic end of {100 * confidence:g} %: steps take {steps} times as long")
    if lab.is_spent:
        notes.append("warning: the budget ended: each candidate says what was not settled")
    about = f"{traffic.num_requests:,} requests, {rate_text(traffic.rate)} requests/s as they stand"
    return Plan(find, scenario.name, tuple(goals), lab.load, tuple(ranked), lab.runs, lab.cpu_s, tuple(notes), about)


def _answers(lab: Laboratory, candidates: Sequence[Candidate], find: Find, tell: Callable[..., None]) -> list[Answer]:
    """Answer for each candidate: short runs of all, then whole ones, of the most promising candidate first.

    What requests cost elsewhere says how exactly the rate of an expensive candidate must be known.
    """
    experience = Experience()
    found: dict[int, Answer] = {}
    shorts: dict[int, float | None] = {}
    for place, candidate in enumerate(candidates if find == "rate" else ()):
        try:
            shorts[place] = short_rate(lab, candidate)
        except InputError as error:
            found[place] = _refused(lab, candidate, error)
        if lab.is_spent:
            break

    def promise(place: int) -> float:
        price = candidates[place].usd_per_hour(candidates[place].scenario.replicas)
        return (shorts.get(place) or 0.0) / (price or 1.0)

    for place in sorted(range(len(candidates)), key=lambda place: -promise(place)):
        candidate = candidates[place]
        try:
            if place in found:
                pass
            elif lab.is_spent:
                found[place] = _unanswered(lab, candidate, "The budget ended before this was tried.")
            elif find == "replicas":
                found[place] = find_replicas(lab, candidate, experience)
            else:
                found[place] = find_rate(lab, candidate, experience, short=shorts[place])
        except InputError as error:
            found[place] = _refused(lab, candidate, error)
        tell(len(found), len(candidates))
    return [found[place] for place in range(len(candidates))]


def _predicted(lab: Laboratory, answer: Answer, confidence: float) -> Answer:
    """Return an answer with the interval of the prediction, of the run that is shown but at the prices as they are."""
    shown = answer.shown
    if shown is None or shown.stopped:
        return answer
    how: dict[str, Any] = {"replicas": shown.replicas, "seed": shown.seed, "early_stop": False, "as_priced": True}
    records = lab.run(answer.candidate, shown.rate, **how).all_records()
    if records is None:
        return answer
    return replace(answer, prediction=prediction_of(answer.candidate, shown.replicas, records, confidence))


def _unanswered(lab: Laboratory, candidate: Candidate, why: str) -> Answer:
    return Answer(candidate, False, candidate.scenario.replicas, lab.load, note=why)


def _refused(lab: Laboratory, candidate: Candidate, error: InputError) -> Answer:
    """Return an answer that says what is wrong with a candidate's scenario. Raises `error` if it is not at fault."""
    if error.file is not None:  # a flag, or the user's own file
        raise error
    return _unanswered(lab, candidate, f"{error.message}.")


def _warnings(traffic: Traffic, goals: Sequence[Goal]) -> list[str]:
    """Warn of a workload that is too short for its goals."""
    count = traffic.num_requests
    tails = [goal.text for goal in goals if goal.quantile is not None and goal.quantile >= 0.99]
    if not tails or count >= _FEW:
        return []
    return [f"warning: {count:,} requests are few for {tails[0]}: {max(count // 100, 1)} of them decide it"]


def _ranked(answers: Sequence[Answer], find: Find) -> list[Answer]:
    """Sort answers, the best first: those that meet the goals by price, the others by how little they miss."""
    priced = all(answer.usd_per_hour is not None for answer in answers if answer.feasible)

    def key(answer: Answer) -> tuple[float, ...]:
        rate = 0.0 if answer.bounds is None else answer.bounds.value
        if not answer.feasible:
            return (1.0, 0.0 if answer.bounds is not None else 1.0, -rate, answer.excess)
        price = answer.usd_per_hour if priced else float(answer.gpus)
        if find == "rate":  # by the price of a request at the largest rate
            price = (price or 0.0) / rate if priced and rate else 0.0
        return (0.0, price or 0.0, -rate)

    return sorted(answers, key=key)  # stable: equals stay in the order of the grid


def _told_apart(answers: list[Answer], find: Find) -> list[Answer]:
    """Set `equal_to_best` where the interval of the difference from the first holds 0."""
    return [
        replace(answer, equal_to_best=answer is answers[0] or _is_equal(answer, answers[0], find)) for answer in answers
    ]


def _is_equal(answer: Answer, best: Answer, find: Find) -> bool:
    if answer.feasible != best.feasible or answer.bounds is None or best.bounds is None:
        return False
    ours, theirs = answer.usd_per_hour, best.usd_per_hour
    if find != "rate" and ours != theirs:
        return False
    apart = difference(answer.bounds, best.bounds)
    if apart is None:
        return answer.bounds.low <= best.bounds.high and best.bounds.low <= answer.bounds.high and ours == theirs
    cheaper = 0.0 if not ours or not theirs else math.log(theirs / ours)
    return apart[0] + cheaper <= 1e-12 and apart[1] + cheaper >= -1e-12
