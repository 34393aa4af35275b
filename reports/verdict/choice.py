"""The choice of a run, the reason for it, and its price: the first sentences of the verdict.

A run that is saturated wins nothing, for its latencies are those of the run's length. Runs that are equal, or that the
seeds cannot tell apart, count as one.
"""

import math
from collections.abc import Mapping, Sequence

from reports.units import latency, number, short
from reports.verdict.shown_metrics import COLUMNS, Column, Summaries
from reports.verdict.significance import estimate, is_real, joined, ranked, seeds, values
from reports.verdict.slo_targets import Judged
from simulator.metrics.outcomes import ATTAINMENT

EVEN = 0.02  # relative difference below which two means are called even
PRICE = 1.1  # factor from which a worse value counts as a price
TAILS = ("p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms")  # what runs are ranked by where the SLO does not decide
PRICES = (*TAILS, "p50_ttft_ms", "p50_tpot_ms", "output_throughput", "wasted_slot_fraction")


def winner(summaries: Summaries, against: Mapping[str, Judged]) -> str | None:
    """The run to take: of those that are not saturated, one that keeps the SLO; of several the quickest at the tail.

    Where none keeps the SLO, the one that is nearest to it. None where all are saturated. `against` holds each run
    against the SLO (`reports.verdict.slo_targets.judged`).
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
