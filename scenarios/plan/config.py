"""Find the best settings for a load: all on short runs, the better third on longer ones, the last few on whole ones."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from scenarios.plan.answer import Answer
from scenarios.plan.candidate import BUDGET, POLICY, SEQS, Candidate
from scenarios.plan.rates import PIECE, Experience, causes, find_rate
from scenarios.plan.search import rounded
from scenarios.plan.trial import Laboratory
from scenarios.schema.scenario import Scenario
from simulator.metrics.metric import Value

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
