"""The prefixes that prompts share, as boxes: as wide as the requests that begin so, as deep as the tokens of it."""

from collections.abc import Iterator
from functools import partial

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from reports.axes import plain_numbers, text_on
from reports.picture import CARD, INK, MAP, DrawnRuns, Mark, Painted, Picture, Plot, draw
from reports.units import number
from simulator.metrics.usage import prompt_tokens_asked
from simulator.results.records import Floats, Ints, Records
from simulator.results.shared_prefixes import PrefixColumns

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
    """The prefixes of the first run that has any, as compared runs have the same requests."""
    for run in drawn.runs:
        if run.prefixes is not None and len(run.prefixes.parent) > 1:
            yield Plot(80, "prefix_tree", "Prefix cache", partial(prefix_tree, run.prefixes, run.records))
            return
