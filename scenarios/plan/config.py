"""The best settings for a load: all on short runs, the better third on longer ones, the last few on whole ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scenarios.plan.answer import Answer
from scenarios.plan.candidate import POLICY, Candidate
from scenarios.plan.experience import Experience
from scenarios.plan.rates import PIECE, causes, find_rate
from scenarios.plan.search import rounded
from scenarios.plan.space import BUDGET, SEQS
from scenarios.plan.trial import Laboratory, Trial
from scenarios.schema.scenario import Scenario
from simulator.metrics.metric import Value

FINALISTS = 5
_SHARE = 3  # one in so many goes on to the next round


def find_config(
    lab: Laboratory,
    candidates: Sequence[Candidate],
    *,
    load: float,
    seeds: Sequence[int],
    experience: Experience,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[Answer], tuple[str, ...]]:
    """The answers of the last candidates, and what became of the others (successive halving, Jamieson 2016).

    A candidate's score is its price where it holds at the load, and else how far it misses. The last ones are searched
    for their largest rates, with the same requests, so that they can be told apart, or not.
    """
    left, notes = list(candidates), []
    for piece in _pieces(lab, load):
        if len(left) <= FINALISTS:
            break
        keep = max(FINALISTS, math.ceil(len(left) / _SHARE))
        seen: list[_Seen] = []
        for candidate in left:
            if lab.is_spent:
                break
            seen.append(_seen(lab, candidate, load, piece))
            if progress is not None:
                progress(lab.runs)
        if len(seen) < len(left):
            notes.append(f"the budget ended in the short runs: {len(left) - len(seen)} candidates were not tried")
        different = _different(seen, lab.traffic.scenario)
        if len(different) < len(seen):
            count = len(seen) - len(different)
            notes.append(
                f"{count} of {len(seen)} candidates came out as another did in short runs, and went no further"
            )
        left = [each.candidate for each in sorted(different, key=lambda each: each.score)[:keep]]
    left = left[:FINALISTS] if len(candidates) > FINALISTS else left
    if len(left) < len(candidates):
        notes.append(f"{len(candidates)} candidates on short runs, the best {len(left)} on whole ones")
    answers = []
    for candidate in left:
        answers.append(_at_load(lab, candidate, load, seeds, experience))
        if progress is not None:
            progress(lab.runs)
    if len(left) < len(candidates) and answers and not any(answer.feasible for answer in answers):
        answers += _between(lab, answers, load, seeds, experience)
    return answers, tuple(notes)


def _between(
    lab: Laboratory, answers: Sequence[Answer], load: float, seeds: Sequence[int], experience: Experience
) -> list[Answer]:
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
        for value in (at - at // part, at + at // part, at + 2 * (at // part)):
            if lab.is_spent or value < 16:
                continue
            candidate = best.candidate.with_settings({BUDGET: value})
            trial = lab.run(candidate, failing.rate, early_stop=False)
            if trial.excess < excess:
                found, excess = candidate, trial.excess
        at = found.scenario.engine.parameter("max_num_batched_tokens")
    seqs = found.scenario.engine.parameter("max_num_seqs")
    for factor in (2, 4) if isinstance(seqs, int) and not lab.is_spent else ():  # another budget fills another batch
        candidate = found.with_settings({SEQS: seqs * factor})
        trial = lab.run(candidate, failing.rate, early_stop=False)
        if trial.excess < excess:
            found, excess = candidate, trial.excess
    if any(found.settings == answer.candidate.settings for answer in answers):
        return []
    return [_at_load(lab, found, load, seeds, experience)]


def _pieces(lab: Laboratory, load: float) -> list[int]:
    """Requests of the short runs: a few per cent of the traffic, then some more."""
    whole = len(lab.traffic.workload(load, lab.traffic.scenario.seed))
    return [piece for piece in (PIECE // 2, 3 * PIECE) if piece * 2 <= whole] or [0]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A candidate after a short run at the load; the lowest score is the best."""

    candidate: Candidate
    score: tuple[float, float, float]
    values: tuple[Value, ...]


def _seen(lab: Laboratory, candidate: Candidate, load: float, piece: int) -> _Seen:
    trial = lab.run(candidate, load, piece=piece, early_stop=False)
    price = candidate.usd_per_hour(candidate.scenario.replicas) or 0.0
    score = (0.0, price, trial.excess) if trial.holds else (1.0, trial.excess, price)
    return _Seen(candidate, score, trial.values)


def _different(seen: Sequence[_Seen], base: Scenario) -> list[_Seen]:
    """Keep, of candidates with equal results, the one that changes least of the scenario. Order stays.

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


def _at_load(
    lab: Laboratory, candidate: Candidate, load: float, seeds: Sequence[int], experience: Experience
) -> Answer:
    """The answer of a candidate whose search begins at the load."""
    if lab.is_spent:
        note = "The budget ended before this was tried on a whole run."
        return Answer(candidate, False, candidate.scenario.replicas, load, note=note)
    at_load = lab.run(candidate, load, early_stop=False)
    shares = causes(at_load, candidate, at_load.worst)
    answer = find_rate(lab, candidate, seeds=seeds, experience=experience, guess=_first_guess(at_load), load=load)
    trials = (at_load.bare(), *answer.trials)
    missed = at_load.worst
    holds = at_load.holds if answer.bounds is None or len(seeds) == 1 else answer.bounds.value >= load
    return replace(
        answer,
        feasible=holds,
        shown=at_load.bare(),
        trials=trials,
        excess=at_load.excess,
        binding=answer.binding if holds else missed,
        shares=answer.shares if holds else shares,
    )


def _first_guess(at_load: Trial) -> float:
    """The rate to look at first: the load moved by what it misses, as if latencies grew with the fourth power of it."""
    return rounded(at_load.rate * math.exp(-max(min(at_load.excess, 1.2), -1.2) / 4))
