"""The plots of a report in the order of the page, painted when asked for.

A new plot is one file, with a function that returns a `Picture`, and one line in `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from reports.drawing.style import Picture, Style
from reports.plots.balance import balance, has_replicas
from reports.plots.bars import latency_bars, throughput_bars
from reports.plots.cdf import Curve, Quantity, cdf, curves, quantities
from reports.plots.fairness import fairness, has_classes
from reports.plots.gantt import gantt
from reports.plots.occupancy import occupancy
from reports.plots.prefix_hits import has_hits, prefix_hits
from reports.plots.prefix_tree import prefix_tree
from reports.plots.timeline import timeline
from reports.report_run import ReportRun
from reports.verdict.shown_metrics import Summaries
from simulator.metrics.slo import Slo
from simulator.results.records import Records


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture's name, the section of the page that it belongs to, and the function that paints it.

    Plots of a section that are `small` stand side by side, before the others.
    """

    name: str
    section: str
    paint: Callable[[], Picture]
    small: bool = False


def plots(runs: Sequence[ReportRun], style: Mapping[str, Style]) -> list[Plot]:
    """Every plot of these runs."""
    labelled = [(run.label, run.records) for run in runs]
    summaries: Summaries = {run.label: run.summaries for run in runs}
    slo = common_slo(runs)

    @cache
    def lines() -> list[dict[str, Curve]]:
        return all_curves(runs)

    def distribution(quantity: Quantity) -> Picture:
        return cdf(quantity, [each[quantity.name] for each in lines()], style)

    return [
        Plot("gantt", "What the slots did", lambda: gantt(labelled, style)),
        Plot("kv_by_request", "What the slots did", lambda: occupancy(labelled, style)),
        *(Plot(each.name, "Latency", partial(distribution, each), small=True) for each in quantities(slo)),
        Plot("timeline", "Over time", lambda: timeline(labelled, style)),
        *_where_there_is_something(labelled, style),
        *_of_prompts(runs),
        Plot("throughput", "Throughput and latency", lambda: throughput_bars(summaries, style)),
        Plot("latency", "Throughput and latency", lambda: latency_bars(summaries, style, slo)),
    ]


def common_slo(runs: Sequence[ReportRun]) -> Slo | None:
    """The SLO that all runs share."""
    return runs[0].slo if all(run.slo == runs[0].slo for run in runs) else None


def all_curves(runs: Sequence[ReportRun]) -> list[dict[str, Curve]]:
    """Each run's latency curves by their names."""
    cut = [{"warmup_s": run.warmup_s, "cooldown_s": run.cooldown_s} for run in runs]
    return [curves(run.label, run.records, common_slo(runs), **times) for run, times in zip(runs, cut, strict=True)]


def _of_prompts(runs: Sequence[ReportRun]) -> list[Plot]:
    """What prompts share: of the first run that says so, as compared runs have the same requests."""
    first = next((run for run in runs if run.prefixes is not None and len(run.prefixes.parent) > 1), None)
    if first is None or first.prefixes is None:
        return []
    return [Plot("prefix_tree", "Prefix cache", partial(prefix_tree, first.prefixes, first.records))]


def _where_there_is_something(runs: Sequence[tuple[str, Records]], style: Mapping[str, Style]) -> list[Plot]:
    """Pictures over time that only some runs have: of classes, of a prefix cache, of a fleet."""
    found = []
    if any(has_classes(records) for _, records in runs):
        found.append(Plot("fairness", "Over time", lambda: fairness(runs)))
    if any(has_replicas(records) for _, records in runs):
        found.append(Plot("balance", "Over time", lambda: balance(runs)))
    if any(has_hits(records) for _, records in runs):
        found.append(Plot("prefix_hits", "Prefix cache", lambda: prefix_hits(runs, style)))
    return found
