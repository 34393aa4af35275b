"""The verdict in words: who keeps the SLO, by what factor the best beats the others, and what it pays for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.columns import COLUMNS, Column, Summaries
from reports.compare import estimate, is_real, joined, ranked, seeds, values
from reports.units import latency, number, short
from simulator.metrics.slo import Slo

KEPT = 0.99  # share of the requests within the SLO that counts as keeping it
EVEN = 0.02  # relative difference below which two means are called even
PRICE = 1.1  # factor from which a worse value counts as a price
PRICES = ("p99_tpot_ms", "p50_tpot_ms", "p50_ttft_ms", "p99_e2el_ms", "output_throughput", "wasted_slot_fraction")


def slo_text(slo: Slo) -> str:
    """TTFT <= 1,000 ms and TPOT <= 50 ms."""
    limits = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("E2E", slo.e2el_ms))
    return joined(f"{name} <= {limit:,g} ms" for name, limit in limits if limit is not None)


def verdict_words(summaries: Summaries, slo: Slo | None = None) -> list[str]:
    """A few sentences, most important first; none where nothing can be said."""
    sentences = [_slo(summaries, slo), _lead(summaries), _same(summaries), *_losses(summaries), _saturated(summaries)]
    return [sentence for sentence in sentences if sentence]


def winner(summaries: Summaries) -> str | None:
    """The run to be held against the others: most within the SLO, then highest goodput, then lowest p99 TTFT."""

    def rank(label: str) -> tuple[float, float, float]:
        runs = summaries[label]
        attained, goodput = estimate(runs, "slo_attainment").mean, estimate(runs, "request_goodput").mean
        ttft = estimate(runs, "p99_ttft_ms").mean
        return (
            -round(attained, 3) if math.isfinite(attained) else 1.0,
            -float(f"{goodput:.2g}") if math.isfinite(goodput) else 1.0,
            ttft if math.isfinite(ttft) else math.inf,
        )

    return min(summaries, key=rank) if summaries else None


def _slo(summaries: Summaries, slo: Slo | None) -> str:
    """Who keeps the limits for 99 % of all requests; where seeds disagree about that, says so."""
    if slo is None or not slo.limits:
        return ""
    keep: list[str] = []
    miss: list[str] = []
    unsure: list[str] = []
    for label in ranked(summaries, "slo_attainment", 1):
        found = estimate(summaries[label], "slo_attainment")
        half = found.half_width or 0.0
        where = keep if found.mean - half >= KEPT else miss if found.mean + half < KEPT else unsure
        where.append(f"{label} ({100 * found.mean:.1f} %)")
    share = f"{100 * KEPT:.0f} % of all requests within {slo_text(slo)}"
    parts = []
    if keep:
        parts.append(f"{joined(keep)} {_verb(keep, 'keeps', 'keep')} {share}")
        if miss:
            parts.append(f"{joined(miss)} {_verb(miss, 'does', 'do')} not")
    elif miss:
        alone = len(miss) == 1 or unsure
        does = _verb(miss, "does", "do")
        parts.append(f"{joined(miss)} {does} not keep {share}" if alone else f"None keeps {share}: {joined(miss)}")
    if unsure:
        text = f"for {joined(unsure)} {seeds(summaries)} seeds are too few to tell"
        parts.append(text if parts else f"{text} whether {share}")
    text = "; ".join(parts)
    return _sentence(text[0].upper() + text[1:] if text.startswith("for ") else text) if parts else ""


def _lead(summaries: Summaries) -> str:
    """How the winner's p99 TTFT and output throughput compare, and the price."""
    first = winner(summaries)
    if first is None or len(summaries) < 2:
        return ""
    parts = [_ttft(summaries, first), _throughput(summaries, first)]
    return " ".join(_sentence(part) for part in (*parts, _price(summaries, first)) if part)


def _ttft(summaries: Summaries, first: str) -> str:
    key = "p99_ttft_ms"
    order = ranked(summaries, key, -1)
    same = _twins(summaries, first)
    others = [label for label in order if label not in same]
    if first not in order or not others:
        return ""
    mean = estimate(summaries[first], key).mean
    text = f"{first}: p99 TTFT {latency(mean)}"
    ends = [others[0]] if len(others) == 1 else [others[0], others[-1]]
    return f"{text}, {joined(_against(summaries, first, label, COLUMNS[key]) for label in ends)}"


def _against(summaries: Summaries, first: str, other: str, column: Column) -> str:
    """`1.8x lower than static (9,120 ms)`; says so where it is even, or where the seeds cannot tell."""
    one, two = estimate(summaries[first], column.key).mean, estimate(summaries[other], column.key).mean
    value = _value(two, column)
    if _even(one, two):
        return f"even with {other} ({value})"
    if seeds(summaries) > 1 and not is_real(summaries[first], summaries[other], column.key):
        return f"not told apart from {other} ({value}) by {seeds(summaries)} seeds"
    word = "higher" if one > two else "lower"
    low, high = sorted((one, two))
    return f"{_factor(high, low)} {word} than {other} ({value})" if low > 0 else f"{word} than {other} ({value})"


def _throughput(summaries: Summaries, first: str) -> str:
    key = "output_throughput"
    order = ranked(summaries, key, 1)
    if first not in order or len(order) < 2:
        return ""
    high, low = (estimate(summaries[label], key).mean for label in (order[0], order[-1]))
    if _even(high, low):
        return "Output throughput is even: the load sets it, not the policy"
    mean = estimate(summaries[first], key).mean
    other = order[-1] if order[-1] != first else order[0]
    return f"Its output throughput is {number(mean)} tok/s, {_against(summaries, first, other, COLUMNS[key])}"


def _price(summaries: Summaries, first: str) -> str:
    """Where another run is better, by how much: the two largest factors."""
    found: list[tuple[float, str]] = []
    same = _twins(summaries, first)
    for key in PRICES:
        column = COLUMNS[key]
        order = [label for label in ranked(summaries, key, column.better) if label not in same]
        mean = estimate(summaries[first], key, column.scale).mean
        if not order or not math.isfinite(mean):
            continue
        rival = order[0]
        theirs = estimate(summaries[rival], key, column.scale).mean
        worse, better = (mean, theirs) if column.better < 0 else (theirs, mean)
        if not (better > 0.0 and worse / better >= PRICE):
            continue
        if seeds(summaries) > 1 and not is_real(summaries[first], summaries[rival], key):
            continue
        text = f"{column.title} {_value(mean, column)} against {_value(theirs, column)} of {rival}"
        found.append((worse / better, text))
    extra = _preemptions(summaries, first)
    found.sort(key=lambda item: -item[0])
    parts = [text for _, text in found[:2]] + ([extra] if extra else [])
    return f"The price: {joined(parts)}" if parts else ""


def _preemptions(summaries: Summaries, first: str) -> str:
    mine = estimate(summaries[first], "preemptions").mean
    least = min((estimate(runs, "preemptions").mean for runs in summaries.values()), default=math.nan)
    return f"{short(mine)} preemptions" if math.isfinite(mine) and mine > least else ""


def _twins(summaries: Summaries, label: str) -> list[str]:
    """The label and those with the same numbers in every column and seed."""
    mine = [repr(values(summaries[label], key)) for key in COLUMNS]  # repr: undefined equals undefined
    return [other for other in summaries if [repr(values(summaries[other], key)) for key in COLUMNS] == mine]


def _same(summaries: Summaries) -> str:
    """Runs between which there is nothing to choose."""
    groups = {tuple(_twins(summaries, label)) for label in summaries}
    found = [group for group in sorted(groups, key=lambda group: list(summaries).index(group[0])) if len(group) > 1]
    return " ".join(_sentence(f"{joined(group)} gave the same numbers, all of them") for group in found)


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
    return [_sentence("; ".join(parts) + rest)] if parts else []


def _requests(count: float) -> str:
    return f"{short(count)} request{'' if count == 1 else 's'}"


def _saturated(summaries: Summaries) -> str:
    names = []
    for label, runs in summaries.items():
        yes = sum(value > 0 for value in values(runs, "saturated"))
        if yes:
            names.append(label if yes == len(runs) else f"{label} ({yes} of {len(runs)} seeds)")
    if not names:
        return ""
    if len(summaries) > 2 and len(names) == len(summaries):
        names = ["All runs"]
    are, its = ("is", "its") if len(names) == 1 and names != ["All runs"] else ("are", "their")
    return _sentence(
        f"{joined(names)} {are} saturated: the queue grew as long as requests came, so {its} latencies depend on how "
        "long the run is and are no steady state"
    )


def _value(value: float, column: Column) -> str:
    return latency(value) if column.unit == "ms" else f"{number(value) if value >= 100 else short(value)} {column.unit}"


def _even(one: float, two: float) -> bool:
    return abs(one - two) <= EVEN * max(abs(one), abs(two))


def _factor(high: float, low: float) -> str:
    ratio = high / low
    return f"{ratio:.2f}x" if ratio < 2 else f"{ratio:.1f}x" if ratio < 20 else f"{number(ratio)}x"


def _verb(names: Sequence[str], one: str, many: str) -> str:
    return one if len(names) == 1 else many


def _sentence(text: str) -> str:
    return f"{text}."
