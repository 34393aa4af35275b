"""The plots of a report in the order of the page, painted when asked for.

A new plot is one file of `reports/plots`: its function `plots` yields a `Plot` where the runs have something to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.drawing.plot import DrawnRuns, Plot
from reports.drawing.report_run import ReportRun
from reports.drawing.style import Style
from simulator.named_class import constants_in


def plots(runs: Sequence[ReportRun], style: Mapping[str, Style]) -> list[Plot]:
    """Every plot of these runs."""
    drawn = DrawnRuns(runs, style)
    found = [plot for of_file in constants_in("reports.plots", "plots").values() for plot in of_file(drawn)]
    return sorted(found, key=lambda plot: plot.place)
