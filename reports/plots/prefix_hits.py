"""The prefix cache over time: the share of the prompt tokens of each stretch that was found in it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from reports.axes import coinciding, plain_numbers, run_time_axis, said
from reports.picture import INK, DrawnRuns, Picture, Plot, Style, draw, shorten
from reports.units import clock_for
from simulator.metrics.usage import prompt_tokens_asked
from simulator.results.records import Floats, Records

BUCKETS = 60


def has_hits(records: Records) -> bool:
    """Return whether the prefix cache ever had anything."""
    return bool((records.requests.cached_tokens > 0).any())


def hit_rate(records: Records, edges: Floats) -> tuple[Floats, Floats]:
    """The share (%) of the prompt tokens of requests first scheduled in each stretch, and of all up to its end."""
    hits, tokens = prompt_tokens_asked(records)
    at = records.requests.scheduled_s
    some = ~np.isnan(at)
    found, _ = np.histogram(at[some], edges, weights=hits[some])
    total, _ = np.histogram(at[some], edges, weights=tokens[some])
    return _share(found, total), _share(np.cumsum(found), np.cumsum(total))


def _share(found: Floats, total: Floats) -> Floats:
    share = np.full(len(total), np.nan)
    np.divide(100.0 * found, total, out=share, where=total > 0)
    return share


def prefix_hits(runs: Sequence[tuple[str, Records]], style: Mapping[str, Style]) -> Picture:
    """A line a run: thin for each stretch of time, thick for all up to there."""
    ends = [float(np.nanmax(records.requests.scheduled_s, initial=0.0)) for _, records in runs]
    edges = np.linspace(0.0, max([*ends, 1e-9]) * (1 + 1e-12), BUCKETS + 1)
    clock = clock_for(float(edges[-1]))
    middle, until = (edges[:-1] + edges[1:]) / 2 / clock.seconds, edges[1:] / clock.seconds

    def paint(figure: Figure) -> str:
        axes = figure.subplots()
        thick = {}
        for place, (label, records) in enumerate(runs):
            look = style[label]
            each, thick[label] = hit_rate(records, edges)
            axes.plot(middle, each, color=look.color, linewidth=0.8, alpha=0.75, gid=f"run-{place}-each")
            (line,) = axes.plot(until, thick[label], color=look.color, linestyle=look.dash, label=shorten(label))
            line.set_gid(f"run-{place}-all")
        axes.set_ylim(0.0, 100.0)
        run_time_axis(axes, float(edges[-1]), clock)
        plain_numbers(axes.yaxis)
        axes.set_ylabel("prompt tokens from the cache (%)")
        figure.legend(loc="outside upper left", ncols=min(len(runs), 4), labelcolor=INK)
        return (
            "Thin: of the requests that began in each stretch; thick: of all up to there. It climbs while the cache "
            "warms up; it falls where blocks are evicted before their prompt comes again."
            + said(coinciding(thick, 100.0))
        )

    return draw("prefix_hits", (10.0, 3.0), paint)


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """The hit rate, where a prefix cache found anything."""
    if drawn.any(has_hits):
        yield Plot(70, "prefix_hits", "Prefix cache", lambda: prefix_hits(drawn.labelled, drawn.style))
