"""Intervals of percentiles within a run alone, and a sentence where a run is too short for them."""

from collections.abc import Mapping, Sequence

from reports.units import number
from reports.verdict.choice import is_saturated
from reports.verdict.shown_metrics import COLUMNS, Summaries
from reports.verdict.significance import joined, seeds
from reports.verdict.slo_targets import Facts
from simulator.metrics.confidence import PERCENTILE_KEYS
from simulator.statistics.percentiles import PercentileInterval, values_needed

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
