"""The verdict in words: which run to take, why, at what price, and what is wrong with the others.

A rule for each sentence, and none for what cannot be said.
"""

from collections.abc import Mapping

from reports.units import latency, short
from reports.verdict.choice import alike, choice, is_saturated, twins, winner
from reports.verdict.run_length import too_few_words
from reports.verdict.shown_metrics import Summaries
from reports.verdict.significance import estimate, joined, seeds, values
from reports.verdict.slo_targets import Facts, Judged, how_text, judged, missed_text, misses_text, slo_text
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.overload import Overload
from simulator.metrics.slo import Slo

_UNPAIRED = "The runs differ in workload, seed or SLO, so no run is recommended."


def verdict_words(
    summaries: Summaries, slo: Slo | None = None, facts: Mapping[str, Facts] | None = None, *, paired: bool = True
) -> list[str]:
    """A few sentences, the most important first; none where nothing can be said.

    `facts` are those of each run's first seed (`reports.verdict.slo_targets.facts`). `paired`: the runs saw the same
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
