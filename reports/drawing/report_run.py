"""A run as a report shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.verdict.shown_metrics import Summary
from simulator.metrics.slo import Slo
from simulator.results.records import Records
from simulator.results.shared_prefixes import PrefixColumns


@dataclass(frozen=True, slots=True)
class ReportRun:
    """One line of a comparison: a policy (or a scenario) and its results.

    `records` are those of the first seed: pictures show one run. `summaries` hold one summary a seed, in the same
    order of seeds for every run, as comparisons are paired. `warmup_s` and `cooldown_s` are the cuts that the
    summaries were made with. `state` says in a sentence how the run is, `findings` are rows of finding, weight, time,
    evidence and remedy, of the first seed. `prefixes` are those that its prompts share, where a prefix cache found any.
    """

    label: str
    policy: str
    records: Records
    summaries: Sequence[Summary]
    scenario_yaml: str = ""
    slo: Slo | None = None
    warmup_s: float = 0.0
    cooldown_s: float = 0.0
    state: str = ""
    findings: Sequence[tuple[str, str, str, str, str]] = ()
    prefixes: PrefixColumns | None = None
