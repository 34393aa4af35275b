"""Differences between runs on the same requests, with intervals: over seeds, or within one run of each."""

from collections.abc import Mapping

from reports.tables.request_tables import TableRows
from reports.units import MISSING, number
from reports.verdict.shown_metrics import COLUMNS, Summaries
from reports.verdict.significance import seeds, values
from simulator.metrics.confidence import PERCENTILE_KEYS, percentile_differences
from simulator.metrics.seed_intervals import metric_difference
from simulator.results.records import Records
from simulator.statistics.intervals import Interval

KEYS = ("p50_ttft_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms", "output_throughput", "slo_attainment")

OVER_SEEDS = "Paired by seed, with 95 % intervals of the mean difference; * excludes 0."
WITHIN_RUNS = (
    "Paired by request, with 95 % intervals by the bootstrap over blocks of neighbouring requests; * excludes 0. "
    "A dash: too few requests, or the runs served different ones."
)


def differences(
    summaries: Summaries, records: Mapping[str, Records], *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> dict[str, dict[str, Interval]]:
    """The differences of each later run to the first, by key; those of `KEYS` that are known."""
    baseline, *others = summaries
    if seeds(summaries) > 1:
        return {
            label: {
                key: found
                for key in KEYS
                if len(summaries[label]) == len(summaries[baseline])
                and (found := metric_difference(key, values(summaries[label], key), values(summaries[baseline], key))).n
                > 1
            }
            for label in others
        }
    keys = [key for key in KEYS if key in PERCENTILE_KEYS]
    cuts = {"warmup_s": warmup_s, "cooldown_s": cooldown_s}
    return {label: percentile_differences(records[label], records[baseline], keys, **cuts) for label in others}


def difference_table(found: Mapping[str, Mapping[str, Interval]]) -> TableRows | None:
    """The differences as rows of text, a run a row; None where none is known."""
    keys = [key for key in KEYS if any(key in of_run for of_run in found.values())]
    if not keys:
        return None
    columns = [_column(key, [of_run.get(key) for of_run in found.values()]) for key in keys]
    head = tuple(f"{COLUMNS[key].title} ({COLUMNS[key].unit})" for key in keys)
    body = tuple((label, *cells) for label, *cells in zip(found, *columns, strict=True))
    return TableRows(("run", *head), body)


def _column(key: str, found: list[Interval | None]) -> list[str]:
    scale = COLUMNS[key].scale
    places = COLUMNS[key].decimals(each.mean * scale for each in found if each is not None)
    return [MISSING if each is None else _cell(each, scale, places) for each in found]


def _cell(found: Interval, scale: float, places: int) -> str:
    mean, low, high = (number(value * scale, places) for value in (found.mean, found.low, found.high))
    sign = "+" if found.mean > 0 and mean.strip("0.,") else ""
    return f"{sign}{mean} [{low}, {high}]{'*' if found.excludes_zero else ' '}"
