"""A plot of a report, and the runs that it is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from reports.drawing.report_run import ReportRun
from reports.drawing.style import Picture, Style
from reports.verdict.shown_metrics import Summaries
from simulator.metrics.slo import Slo
from simulator.results.records import Records


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
