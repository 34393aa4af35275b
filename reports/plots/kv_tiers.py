"""Prompt tokens over time by where their KV came from: the GPUs' prefix cache, the host, further tiers, or nowhere."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from reports.axes import plain_numbers, run_time_axis
from reports.picture import CARD, HELD, DrawnRuns, Picture, Plot, draw, shorten
from reports.units import clock_for
from simulator.metrics.usage import prompt_tokens_asked
from simulator.results.records import Floats, Records

BUCKETS = 60
COLORS = ("#0072b2", "#56b4e9", "#e69f00", "#775ce6", HELD)
PLACES = ("GPU cache", "host", "first further tier", "second further tier", "computed")


def has_tiers(records: Records) -> bool:
    """Return whether KV was copied between GPUs and host."""
    return records.copies is not None


def by_place(records: Records) -> Floats:
    """Prompt tokens of every request by place: (places, requests).

    What came from a further tier went through the host, and is not the host's.
    """
    cached, asked = prompt_tokens_asked(records)
    found = np.zeros((len(PLACES), len(asked)))
    found[0] = cached
    copies = records.copies
    if copies is not None:
        for tier in range(3):
            chosen = (copies.tier == tier) & (copies.stored == 0)
            found[1 + tier] = np.bincount(copies.row[chosen], copies.tokens[chosen], len(asked))
        loaded = found[1].copy()
        for tier in (2, 3):
            found[tier] = np.minimum(found[tier], loaded)
            loaded -= found[tier]
        found[1] = loaded
    found[-1] = np.maximum(asked - found.sum(axis=0), 0.0)
    return found


def shares(records: Records, edges: Floats) -> Floats:
    """The share (%) of each place in the prompt tokens of the requests first scheduled in each stretch."""
    at = records.requests.scheduled_s
    some = ~np.isnan(at)
    tokens = np.array([np.histogram(at[some], edges, weights=row[some])[0] for row in by_place(records)])
    total = tokens.sum(axis=0)
    return np.asarray(np.divide(100.0 * tokens, total, out=np.zeros_like(tokens), where=total > 0))


def kv_tiers(runs: Sequence[tuple[str, Records]]) -> Picture:
    """A panel a run: areas by place, the nearest to the GPU at the bottom."""
    ends = [float(np.nanmax(records.requests.scheduled_s, initial=0.0)) for _, records in runs]
    edges = np.linspace(0.0, max([*ends, 1e-9]) * (1 + 1e-12), BUCKETS + 1)
    clock = clock_for(float(edges[-1]))
    found = [shares(records, edges) for _, records in runs]
    shown = [place for place in range(len(PLACES)) if any(each[place].any() for each in found)]

    def paint(figure: Figure) -> str:
        grid = figure.subplots(len(runs), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
        for axes, (label, _), each in zip(grid, runs, found, strict=True):
            floor = np.zeros(BUCKETS)
            for place in shown:
                top = floor + each[place]
                axes.stairs(top, edges / clock.seconds, baseline=floor, fill=True, facecolor=COLORS[place],
                            edgecolor=CARD, linewidth=0.4, label=PLACES[place])  # fmt: skip
                floor = top
            axes.set_title(shorten(label))
            axes.set_ylabel("prompt tokens\n(%)")
            plain_numbers(axes.yaxis, bins=4)
        grid[0].set_ylim(0.0, 100.0)
        run_time_axis(grid[-1], float(edges[-1]), clock)
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(shown))
        return (
            "Source of the prompts' KV, by the time at which their requests started: the GPUs' prefix cache, the host, "
            "further tiers through the host, or none, so that it was computed. When a tier is full of KV that is not "
            "used again, the tier below it supplies more."
        )

    return draw("kv_tiers", (10.0, 1.2 + 1.7 * len(runs)), paint)


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """The places of prompts' KV, where a run stores any on its host."""
    if drawn.any(has_tiers):
        yield Plot(71, "kv_tiers", "Prefix cache", lambda: kv_tiers(drawn.labelled))
