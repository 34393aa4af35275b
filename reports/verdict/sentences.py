"""The verdict in words: which run to take, why, at what price, and what is wrong with the others.

A rule for each sentence, and none for what cannot be said.
"""

import math
from collections.abc import Mapping, Sequence

from reports.units import latency, number, short
from reports.verdict.shown_metrics import (
    COLUMNS,
    Column,
    Facts,
    Judged,
    Summaries,
    estimate,
    how_text,
    is_real,
    joined,
    judged,
    missed_text,
    misses_text,
    ranked,
    seeds,
    slo_text,
    values,
)
from simulator.metrics.confidence import PERCENTILE_KEYS
from simulator.metrics.latency import Slo
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.waits import Overload
from simulator.statistics import PercentileInterval, values_needed

# The choice of a run, the reason for it, and its price: the first sentences of the verdict.
#
# A run that is saturated wins nothing, for its latencies are those of the run's length. Runs that are equal, or
# that the seeds cannot tell apart, count as one.

EVEN = 0.02  # relative difference below which two means are called even
PRICE = 1.1  # factor from which a worse value counts as a price
TAILS = ("p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms")  # what runs are ranked by where the SLO does not decide
PRICES = (*TAILS, "p50_ttft_ms", "p50_tpot_ms", "output_throughput", "wasted_slot_fraction")


def winner(summaries: Summaries, against: Mapping[str, Judged]) -> str | None:
    """The run to take: of those that are not saturated, one that keeps the SLO; of several the quickest at the tail.

    Where none keeps the SLO, the one that is nearest to it. None where all are saturated. `against` holds each run
    against the SLO (`reports.verdict.shown_metrics.judged`).
    """
    able = [label for label in summaries if not is_saturated(summaries, label)]

    def rank(label: str) -> tuple[float, ...]:
        found = against[label]
        sure = found.keeps and not found.unsure
        lost = sum(_mean(summaries, label, key) for key in ("rejected", "unfinished"))
        return (
            0.0 if sure else 1.0 if found.outcomes else 2.0,
            0.0 if sure else found.worst,
            lost,
            _tail(summaries, label, able),
            _mean(summaries, label, "preemptions"),
        )

    return min(able, key=rank) if able else None


def _tail(summaries: Summaries, label: str, among: Sequence[str]) -> float:
    """The distance of a run to the quickest at the tail: the mean over `TAILS` of the ratios' logarithms.

    In steps of 2 %, so that less decides nothing.
    """
    logs = []
    for key in TAILS:
        means = {other: estimate(summaries[other], key).mean for other in among}
        least = min((mean for mean in means.values() if mean > 0), default=math.nan)
        if least > 0 and means[label] > 0:
            logs.append(math.log(means[label] / least))
    return round(sum(logs) / len(logs) / EVEN) * EVEN if logs else math.inf


def choice(summaries: Summaries, against: Mapping[str, Judged], first: str | None) -> list[str]:
    """Recommend a run and give the reason, then the price; say nothing for a run alone."""
    if len(summaries) < 2:
        return []
    if first is None:
        return ["No recommendation: all runs are saturated. Compare them at a lower load, or with more replicas."]
    same = group(summaries, first)
    others = [label for label in summaries if label not in same]
    if not others:
        return ["The runs are equal."]
    price = _price(summaries, first, others)
    if not against[first].outcomes:
        return _without_slo(summaries, first, same, price)
    if not against[first].keeps:
        comes = "comes" if len(same) == 1 else "come"
        return [f"No run keeps the SLO at this load. {joined(same)} {comes} nearest.", *price]
    if against[first].unsure:
        return [
            f"Perhaps {first}: {seeds(summaries)} seeds are too few to decide whether any run keeps the SLO.",
            *price,
        ]
    rivals = [label for label in others if against[label].keeps and not is_saturated(summaries, label)]
    if not rivals:
        only = "it alone" if len(same) == 1 else "no other run"
        return [f"Take {either(same)} at this load: {only} keeps the SLO.", *price]
    does = "does" if len(rivals) == 1 else "do"
    why = _best(summaries, first, rivals)
    return [f"Take {either(same)} at this load: it keeps the SLO, as {joined(rivals)} {does}, {why}.", *price]


def _without_slo(summaries: Summaries, first: str, same: Sequence[str], price: Sequence[str]) -> list[str]:
    """Without an SLO a run can be recommended only if it is best or even at every tail."""
    lead: dict[str, list[str]] = {}
    for key in TAILS:
        able = [label for label in ranked(summaries, key, -1) if not is_saturated(summaries, label)]
        if able:
            best = able[0] if differs(summaries, first, able[0], key) else first
            text = f"{COLUMNS[key].title} {latency(estimate(summaries[best], key).mean)}"
            lead.setdefault(best, []).append(text)
    if list(lead) == [first]:
        return [f"Take {either(same)} at this load: no run is quicker at the tail ({joined(lead[first])}).", *price]
    if not lead:
        return []
    parts = [f"{joined(texts)} with {label}" for label, texts in lead.items()]
    return [f"No run is best in every figure, and there is no SLO to decide. The lowest: {'; '.join(parts)}."]


def _best(summaries: Summaries, first: str, rivals: Sequence[str]) -> str:
    """Name the tails in which the first beats every rival: the reason to prefer it among those that keep the SLO."""
    better = []
    for key in TAILS:
        mean = estimate(summaries[first], key).mean
        order = [label for label in ranked(summaries, key, -1) if label in rivals]
        if order and mean < estimate(summaries[order[0]], key).mean and differs(summaries, first, order[0], key):
            theirs = latency(estimate(summaries[order[0]], key).mean)
            better.append(f"{COLUMNS[key].title} {latency(mean)} against {theirs} of {order[0]}")
    if not better:
        return "and none of these is quicker at all tails"
    return f"and is quicker at the tail ({joined(better)})"


def _price(summaries: Summaries, first: str, others: Sequence[str]) -> list[str]:
    """The price of the choice: the two largest factors by which another run is better, and when to take that run."""
    found: list[tuple[float, str, str]] = []
    for key in PRICES:
        column = COLUMNS[key]
        order = [label for label in ranked(summaries, key, column.better) if label in others]
        order = [label for label in order if not is_saturated(summaries, label)]
        mean = estimate(summaries[first], key, column.scale).mean
        if not order or not math.isfinite(mean) or not differs(summaries, first, order[0], key):
            continue
        theirs = estimate(summaries[order[0]], key, column.scale).mean
        worse, better = (mean, theirs) if column.better < 0 else (theirs, mean)
        if better > 0.0 and worse / better >= PRICE:
            text = f"{column.title} {_value(mean, column)} against {_value(theirs, column)} of {order[0]}"
            found.append((worse / better, text, order[0]))
    found.sort(key=lambda item: -item[0])
    parts = [text for _, text, _ in found[:2]]
    mine = _mean(summaries, first, "preemptions")
    if mine > min(_mean(summaries, label, "preemptions") for label in others):
        parts.append(f"{short(mine)} preemption{'' if mine == 1 else 's'}")
    if not parts:
        return []
    instead = list(dict.fromkeys(label for _, _, label in found[:2]))
    advice = f" If that matters more to you, take {either(instead)}." if instead else ""
    return [f"The price: {joined(parts)}.{advice}"]


def twins(summaries: Summaries, label: str) -> list[str]:
    """The label and those with the same numbers in every column and seed."""
    mine = [repr(values(summaries[label], key)) for key in COLUMNS]  # repr: undefined equals undefined
    return [other for other in summaries if [repr(values(summaries[other], key)) for key in COLUMNS] == mine]


def alike(summaries: Summaries, label: str) -> list[str]:
    """The runs that the seeds cannot tell from this one in any of the prices, twins apart; none for one seed."""
    runs, same = summaries[label], twins(summaries, label)
    if len(runs) < 2:
        return []
    return [
        other
        for other, theirs in summaries.items()
        if other not in same
        and len(theirs) == len(runs)
        and not any(is_real(runs, theirs, key) for key in (*PRICES, ATTAINMENT))
    ]


def group(summaries: Summaries, label: str) -> list[str]:
    """The label, its twins and what cannot be told from it, in the order given."""
    same = {*twins(summaries, label), *alike(summaries, label)}
    return [other for other in summaries if other in same]


def differs(summaries: Summaries, one: str, other: str, key: str) -> bool:
    """Return whether two means differ by more than `EVEN`, and over several seeds by more than chance."""
    a, b = (estimate(summaries[label], key).mean for label in (one, other))
    if not abs(a - b) > EVEN * max(abs(a), abs(b)):
        return False
    return seeds(summaries) < 2 or is_real(summaries[one], summaries[other], key)


def is_saturated(summaries: Summaries, label: str) -> bool:
    """Return whether the run is saturated with any seed."""
    return any(value > 0 for value in values(summaries[label], "saturated"))


def either(names: Sequence[str]) -> str:
    """a, b or c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _mean(summaries: Summaries, label: str, key: str) -> float:
    mean = estimate(summaries[label], key).mean
    return mean if math.isfinite(mean) else 0.0


def _value(value: float, column: Column) -> str:
    return latency(value) if column.unit == "ms" else f"{number(value) if value >= 100 else short(value)} {column.unit}"


# Intervals of percentiles within a run alone, and a sentence where a run is too short for them.

Own = Mapping[str, PercentileInterval]
"""Percentiles of one run with their intervals, by key of summary.json."""


def own_intervals(summaries: Summaries, facts: Mapping[str, Facts] | None) -> Own:
    """The intervals within a run that stands alone; none for several runs or seeds, and none in an overloaded one."""
    labels = list(summaries)
    if len(labels) != 1 or seeds(summaries) > 1 or is_saturated(summaries, labels[0]):
        return {}
    return (facts or {}).get(labels[0], Facts()).percentiles


def too_few_words(summaries: Summaries, facts: Mapping[str, Facts]) -> list[str]:
    """Name the percentiles that stand on too few requests, and their runs; say nothing where all are bounded.

    A mean over seeds is too low as well if each run is too short, so there the requests of a run alone are counted.
    """
    several = seeds(summaries) > 1
    by_keys: dict[tuple[str, ...], list[str]] = {}
    for label in summaries:
        found = facts[label].percentiles
        keys = tuple(key for key, each in found.items() if _too_few(key, each, of_several=several))
        if keys and not is_saturated(summaries, label):
            by_keys.setdefault(keys, []).append(label)
    return [_sentence(keys, labels, facts, summaries) for keys, labels in by_keys.items()]


def _too_few(key: str, found: PercentileInterval, *, of_several: bool) -> bool:
    if not found.n:
        return False
    return found.n < values_needed(PERCENTILE_KEYS[key][0]) if of_several else not found.is_bounded


def _sentence(keys: Sequence[str], labels: Sequence[str], facts: Mapping[str, Facts], summaries: Summaries) -> str:
    found = [facts[label].percentiles[key] for label in labels for key in keys]
    percent = max(PERCENTILE_KEYS[key][0] for key in keys)
    least = min(found, key=lambda each: each.effective)
    several = seeds(summaries) > 1
    whose = "" if len(labels) == len(summaries) else f" of {joined(labels)}"
    names = [COLUMNS[key].title for key in keys]
    worth = f"{number(least.effective)} independent request{'' if number(least.effective) == '1' else 's'}"
    run = "each run is" if several else "the run is"
    rest = "The means over seeds are too low." if several else "The true value may be far higher."
    return (
        f"{joined(names)}{whose} {'is' if len(names) == 1 else 'are'} uncertain: {run} worth {worth}, p{percent} needs "
        f"{number(values_needed(percent))}. {rest} Run longer."
    )


# The sentences, a rule for each.

_UNPAIRED = "The runs differ in workload, seed or SLO, so no run is recommended."


def verdict_words(
    summaries: Summaries, slo: Slo | None = None, facts: Mapping[str, Facts] | None = None, *, paired: bool = True
) -> list[str]:
    """A few sentences, the most important first; none where nothing can be said.

    `facts` are those of each run's first seed (`reports.verdict.shown_metrics.facts`). `paired`: the runs saw the same
    requests and have the same SLO; runs that did not are not held against each other.
    """
    known = {label: (facts or {}).get(label, Facts()) for label in summaries}
    against = {label: judged(runs, slo) for label, runs in summaries.items()}
    first = winner(summaries, against)
    overloads = {label: None if is_saturated(summaries, label) else each.overload for label, each in known.items()}
    if not paired:
        overloaded = overload_words(overloads, of_first=seeds(summaries) > 1)
        few = too_few_words(summaries, known)
        return [_UNPAIRED, *_losses(summaries), *filter(None, [_saturated(summaries, known)]), *overloaded, *few]
    sentences = [
        *choice(summaries, against, first),
        *_slo(summaries, slo, against, known),
        *_same(summaries, first),
        *_losses(summaries),
        _saturated(summaries, known),
        *overload_words(overloads, first, of_first=seeds(summaries) > 1),
        *too_few_words(summaries, known),
    ]
    return [sentence for sentence in sentences if sentence]


def _slo(summaries: Summaries, slo: Slo | None, against: Mapping[str, Judged], facts: Mapping[str, Facts]) -> list[str]:
    """Name the runs that keep the SLO, and the limits that the others miss and by how much; equal runs once."""
    if slo is None or not any(found.outcomes for found in against.values()):
        return []
    keep: list[str] = []
    unsure: list[str] = []
    miss: list[str] = []
    keepers = 0
    of_first = " with the first seed" if seeds(summaries) > 1 else ""
    done: set[str] = set()
    for label in sorted(summaries, key=lambda label: (against[label].worst, not against[label].keeps)):
        found = against[label]
        if label in done or not found.outcomes:
            continue
        same = twins(summaries, label)
        done.update(same)
        if found.unsure:
            unsure.append(f"{joined(same)} ({how_text(found)})")
        elif found.keeps:
            keep.append(f"{joined(same)} ({how_text(found)})")
            keepers += len(same)
        else:
            missed = [missed_text(outcome) for outcome in found.missed[:2]]
            if any(outcome.metric == ATTAINMENT for outcome in found.missed[:2]):
                missed += [f"{text}{of_first}" for text in misses_text(facts[label].misses)]
            verb = "misses" if len(same) == 1 else "miss"
            miss.append(f"{joined(same)} {verb} it: {'; '.join(missed)}.")
    share = "" if slo.has_targets else " for 99 % of the requests"
    said = [f"SLO: {slo_text(slo)}{share}."]
    if keep:
        said.append(f"{joined(keep)} {'keeps' if keepers == 1 else 'keep'} it.")
    if unsure:
        verb = "keeps" if len(unsure) == 1 else "keep"
        said.append(f"{seeds(summaries)} seeds are too few to tell whether {joined(unsure)} {verb} it.")
    return [" ".join(said), *miss]


def _same(summaries: Summaries, first: str | None) -> list[str]:
    """Runs between which there is nothing to choose, each group once."""
    groups = dict.fromkeys(tuple(twins(summaries, label)) for label in summaries)
    said = [f"{joined(same)} have equal numbers." for same in groups if len(same) > 1]
    if first is not None and (others := alike(summaries, first)):
        said.append(f"With {seeds(summaries)} seeds, {joined(others)} cannot be told apart from {first}.")
    return said


def _losses(summaries: Summaries) -> list[str]:
    """Requests that were not served: latencies say nothing about them."""
    parts = []
    for label, runs in summaries.items():
        rejected, unfinished = (estimate(runs, key).mean for key in ("rejected", "unfinished"))
        said = [f"rejected {_requests(rejected)}"] if rejected > 0 else []
        said += [f"left {_requests(unfinished)} unfinished"] if unfinished > 0 else []
        if said:
            parts.append(f"{label} {joined(said)}")
    served = any(value > 0 for runs in summaries.values() for value in values(runs, "completed"))
    rest = ": the latencies are those of the other requests" if served else " and served none"
    return [f"{'; '.join(parts)}{rest}."] if parts else []


def _requests(count: float) -> str:
    return f"{short(count)} request{'' if count == 1 else 's'}"


def _saturated(summaries: Summaries, facts: Mapping[str, Facts]) -> str:
    """Runs without a steady state, and how much more arrived than they could start."""
    names = []
    for label, runs in summaries.items():
        yes = sum(value > 0 for value in values(runs, "saturated"))
        if yes:
            found = facts[label].overload
            notes = [f"{yes} of {len(runs)} seeds"] if yes < len(runs) else []
            if found is not None:
                rates = (f"{short(rate)} requests/s" for rate in (found.arrival_rate, found.service_rate))
                notes.append("{} arrived, {} started".format(*rates))
            names.append(f"{label} ({', '.join(notes)})" if notes else label)
    if not names:
        return ""
    are, its = ("is", "its") if len(names) == 1 else ("are", "their")
    return (
        f"{joined(names)} {are} saturated: the queue grew as long as requests arrived. There is no steady state, and "
        f"{its} latencies depend on the length of the run."
    )


def overload_words(
    found: Mapping[str, Overload | None], first: str | None = None, *, of_first: bool = False
) -> list[str]:
    """The overload of `first`, or else of the run that most requests paid for, whole; the others in short.

    Runs with the very same overload are told once. `of_first` says that these are of the first of several seeds.
    """
    runs = {label: each for label, each in found.items() if each is not None}
    if not runs:
        return []
    label = first if first in runs else max(runs, key=lambda name: runs[name].all_late)
    others = [
        f"{name} ({each.peak:,} waiting, {each.all_late:,} late)" for name, each in runs.items() if each != runs[label]
    ]
    also = f" The same happened to {joined(others)}." if others else ""
    begin = "With the first seed, " if of_first else ""
    return [f"{begin}{label} {_whole(runs[label])}{also}"]


def _whole(each: Overload) -> str:
    again = f", the worst of {each.times} such times" if each.times > 1 else ""
    share = f"({100 * each.all_late / each.requests:.1f} %)"
    if each.times > 1:
        share = f"({each.all_late:,} of all {each.requests:,} in all such times, {share[1:]}"
    started = short(each.service_rate) if each.service_rate else "none"
    return (
        f"was overloaded from {_time(each.from_s)} to {_time(each.to_s)}{again}: "
        f"{short(each.arrival_rate)} requests/s arrived; the server could start {started}. The queue "
        f"reached {each.peak:,} at {_time(each.peak_s)}. {each.late:,} requests waited longer than "
        f"{latency(each.limit_s * 1e3)} {share}, the longest {latency(each.longest_s * 1e3)}."
    )


def _time(seconds: float) -> str:
    """A moment of the run: 181 s, 12.4 min."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.1f} min"
