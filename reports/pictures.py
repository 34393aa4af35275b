"""Every picture of a report by its name, in the order of the page, painted when asked for.

A new picture is one file that returns a `Picture`, and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Protocol

from reports.bars import latency_bars, throughput_bars
from reports.cdf import Curve, Quantity, cdf, curves, quantities
from reports.columns import Summaries, Summary
from reports.gantt import gantt
from reports.style import Picture, Style
from reports.timeline import timeline
from simulator.metrics.slo import Slo
from simulator.results.records import Records


class Drawn(Protocol):
    """What pictures show of a run; `reports.build.ReportRun` has it."""

    @property
    def label(self) -> str:
        """What tables and legends call it."""

    @property
    def records(self) -> Records:
        """The rows of the first seed."""

    @property
    def summaries(self) -> Sequence[Summary]:
        """One a seed."""

    @property
    def slo(self) -> Slo | None:
        """The limits, drawn as lines."""

    @property
    def warmup_s(self) -> float:
        """What the metrics leave out at the start."""

    @property
    def cooldown_s(self) -> float:
        """What they leave out at the end."""


def painters(runs: Sequence[Drawn], style: Mapping[str, Style]) -> dict[str, Callable[[], Picture]]:
    """What paints each picture, by the picture's name."""
    labelled = [(run.label, run.records) for run in runs]
    summaries: Summaries = {run.label: run.summaries for run in runs}
    slo = runs[0].slo if all(run.slo == runs[0].slo for run in runs) else None

    @cache
    def lines() -> list[dict[str, Curve]]:
        cut = [{"warmup_s": run.warmup_s, "cooldown_s": run.cooldown_s} for run in runs]
        return [curves(run.label, run.records, slo, **times) for run, times in zip(runs, cut, strict=True)]

    def distribution(quantity: Quantity) -> Picture:
        return cdf(quantity, [each[quantity.name] for each in lines()], style)

    return {
        "gantt": lambda: gantt(labelled, style),
        **{quantity.name: partial(distribution, quantity) for quantity in quantities(slo)},
        "timeline": lambda: timeline(labelled, style),
        "throughput": lambda: throughput_bars(summaries, style),
        "latency": lambda: latency_bars(summaries, style, slo),
    }
