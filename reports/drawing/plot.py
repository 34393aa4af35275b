"""A plot of a report, and the runs that it is drawn from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reports.drawing.style import Picture, Style
from reports.verdict.shown_metrics import Summaries, Summary
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


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture's place on the page, its name, its section, and the function that paints it.

    Plots stand in the order of `place`. Plots of a section that are `small` stand side by side, before the others.
    """

    place: int
    name: str
    section: str
    paint: Callable[[], Picture]
    small: bool = False


@dataclass(frozen=True, slots=True)
class DrawnRuns:
    """The runs of a report, and the style of each by its label."""

    runs: Sequence[ReportRun]
    style: Mapping[str, Style]

    @property
    def labelled(self) -> list[tuple[str, Records]]:
        """Label and records of each run."""
        return [(run.label, run.records) for run in self.runs]

    @property
    def summaries(self) -> Summaries:
        """The summaries of each run by its label."""
        return {run.label: run.summaries for run in self.runs}

    @property
    def slo(self) -> Slo | None:
        """The SLO that all runs share."""
        first = self.runs[0].slo
        return first if all(run.slo == first for run in self.runs) else None

    def any(self, has: Callable[[Records], bool]) -> bool:
        """Return whether this is true of the records of any run."""
        return any(has(run.records) for run in self.runs)
