"""The prefix cache: tokens found in it over time, where their KV came from, and the prefixes that prompts share."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from reports.picture import (
    CARD,
    HELD,
    INK,
    MAP,
    DrawnRuns,
    Mark,
    Painted,
    Picture,
    Plot,
    Style,
    coinciding,
    draw,
    plain_numbers,
    run_time_axis,
    said,
    shorten,
    text_on,
)
from reports.units import clock_for, number
from simulator.metrics.usage import prompt_tokens_asked
from simulator.results.records import Floats, Ints, Records
from simulator.results.shared_prefixes import PrefixColumns

# The prefix cache over time: the share of the prompt tokens of each stretch that was found in it.

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


# Prompt tokens over time by where their KV came from: the GPUs' prefix cache, the host, further tiers, or nowhere.

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


# The prefixes that prompts share, as boxes: as wide as the requests that begin so, as deep as the tokens of it.

MOST_BOXES = 1500  # those of the most repeated tokens; smaller ones would be hairlines
MOST_MARKS = 300
_LABELLED = 0.035  # of the picture's width: a box that wide has room for its number


def prefix_tree(prefixes: PrefixColumns, records: Records) -> Picture:
    """The tree of the prompts, and what of it the cache found."""

    def paint(figure: Figure) -> Painted:
        axes = figure.subplots()
        left, shown = layout(prefixes), _shown(prefixes)
        marks = _boxes(axes, prefixes, left, shown)
        axes.set_xlim(0.0, float(prefixes.requests[0]))
        axes.set_ylim(float(_deepest(prefixes, shown)), 0.0)
        axes.set_xlabel("requests")
        axes.set_ylabel("tokens from the beginning of the prompt")
        plain_numbers(axes.xaxis, bins=10)
        plain_numbers(axes.yaxis)
        axes.grid(visible=False)
        axes.set_title("Prefixes that prompts share")
        axes.set_title(_told(prefixes), loc="right", fontsize=8.5, fontweight="normal", color=INK)
        return Painted(_words(prefixes, records), marks)

    return draw("prefix_tree", (10.0, 4.0), paint)


def _told(prefixes: PrefixColumns) -> str:
    """The number of prefixes, and the one that most requests have, if half of them do."""
    count = len(prefixes.parent) - 1
    most = int(np.argmax(prefixes.requests[1:])) + 1
    text = f"{number(count)} prefixes of two requests or more"
    if 2 * prefixes.requests[most] < prefixes.requests[0]:
        return text
    sharing, all_of_them = (number(int(prefixes.requests[place])) for place in (most, 0))
    who = f"all {sharing}" if sharing == all_of_them else f"{sharing} of {all_of_them}"
    return f"{who} requests share the first {number(int(prefixes.to_tokens[most]))} tokens; {text}"


def layout(prefixes: PrefixColumns) -> Floats:
    """The left edge of every box: inside its parent's, beside its siblings, the widest first."""
    left = np.zeros(len(prefixes.parent))
    free = np.zeros(len(prefixes.parent))
    for node in np.argsort(-prefixes.requests, kind="stable").tolist():  # a parent is never narrower than its child
        above = int(prefixes.parent[node])
        if above >= 0:
            left[node] = free[above]
            free[above] += prefixes.requests[node]
        free[node] = left[node]
    return left


def _shown(prefixes: PrefixColumns) -> Ints:
    repeated = (prefixes.to_tokens - prefixes.from_tokens) * (prefixes.requests - 1)
    order = np.argsort(-repeated[1:], kind="stable")[:MOST_BOXES] + 1
    return np.sort(order)


def _deepest(prefixes: PrefixColumns, shown: Ints) -> float:
    """The depth at which the picture ends: three per cent of the repeated tokens lie below it."""
    if not len(shown):
        return 1.0
    ends, requests = prefixes.to_tokens[shown], prefixes.requests[shown]
    repeated = (ends - prefixes.from_tokens[shown]) * (requests - 1)
    order = np.argsort(ends)
    so_far = np.cumsum(repeated[order])
    place = int(np.searchsorted(so_far, 0.97 * so_far[-1]))
    return 1.04 * float(ends[order][min(place, len(order) - 1)])


def _boxes(axes: Axes, prefixes: PrefixColumns, left: Floats, shown: Ints) -> list[Mark]:
    if not len(shown):
        return []
    requests, top, bottom = prefixes.requests[shown], prefixes.from_tokens[shown], prefixes.to_tokens[shown]
    x = left[shown]
    corners = np.stack([x, top, x + requests, top, x + requests, bottom, x, bottom], 1).reshape(-1, 4, 2)
    norm = LogNorm(2.0, max(float(requests.max()), 3.0))
    shades = colormaps[f"{MAP}_r"](0.3 + 0.6 * np.asarray(norm(requests)))
    wide = requests > 0.004 * prefixes.requests[0]
    edges = np.where(wide, 0.5, 0.0)
    axes.add_collection(PolyCollection(list(corners), facecolors=shades, edgecolors=CARD, linewidths=edges, zorder=2))
    end = _deepest(prefixes, shown)
    for node, shade, each, a, b in zip(x, shades, requests, top, bottom, strict=True):
        if each > _LABELLED * prefixes.requests[0] and min(b, end) - a > 0.07 * end:
            axes.text(node + each / 2, (a + min(b, end)) / 2, number(int(each)), ha="center", va="center", fontsize=8.0,
                      color=text_on(shade), zorder=3)  # fmt: skip
    largest = np.argsort(-requests * (bottom - top), kind="stable")[:MOST_MARKS]
    return [
        Mark(axes, x[at] + requests[at] / 2, (top[at] + min(bottom[at], end)) / 2,
             f"tokens {number(int(top[at]))} to {number(int(bottom[at]))}: {number(int(requests[at]))} requests begin "
             "with all of these", int(at))
        for at in sorted(largest.tolist())
    ]  # fmt: skip


def _words(prefixes: PrefixColumns, records: Records) -> str:
    found, asked = (int(each.sum()) for each in prompt_tokens_asked(records))
    there = int(prefixes.requests[0])
    could = _percent(prefixes.repeated_tokens, int(records.requests.input_tokens[:there].sum()))
    some_of = f" The boxes are those of the first {number(there)} requests." * (there < len(records.requests.row))
    return (
        "A box is a stretch of tokens that requests have in common, behind the boxes above it: as wide as the requests "
        f"that begin so, and darker for more. {could} of all prompt tokens stand in a prefix that an earlier request "
        f"had; the cache found {_percent(found, asked)}. What it did not was evicted, not yet computed, shorter than a "
        f"block, or on another replica.{some_of}"
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "0 %"


def plots(drawn: DrawnRuns) -> Iterator[Plot]:
    """The hit rate, where a prefix cache found anything; the places of prompts' KV, where a run stores any on its host.

    And the prefixes of the first run that has any, as compared runs have the same requests.
    """
    if drawn.any(has_hits):
        yield Plot(70, "prefix_hits", "Prefix cache", lambda: prefix_hits(drawn.labelled, drawn.style))
    if drawn.any(has_tiers):
        yield Plot(71, "kv_tiers", "Prefix cache", lambda: kv_tiers(drawn.labelled))
    for run in drawn.runs:
        if run.prefixes is not None and len(run.prefixes.parent) > 1:
            yield Plot(80, "prefix_tree", "Prefix cache", partial(prefix_tree, run.prefixes, run.records))
            return
