"""Data for the page's script: curves, time series and slots, finer than the pictures and still small."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from reports.picture import Picture, Style
from reports.plots.cdf import GRID, CdfCurve, Quantity, quantities, top_percent
from reports.plots.timeline import Strip, apart, shown_until, strips
from reports.slots import Stays, assign, stalls, stays, window
from simulator.results.records import Floats, Records

# Numbers as a page carries them: few characters each, and no more digits than a picture can show.

Json = Mapping[str, Any]
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def rounded(values: ArrayLike, digits: int = 3) -> list[float | int | None]:
    """Values with so many significant digits; None where there is none."""
    found: list[float | int | None] = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        if value != value or value in (float("inf"), float("-inf")):
            found.append(None)
            continue
        short = float(f"{value:.{digits}g}")
        found.append(int(short) if short == int(short) else short)
    return found


def steps_between(times_s: Floats, unit_s: float) -> list[int]:
    """Rising times as whole units: the first, then each one's distance to the one before. Errors do not add up."""
    whole = np.rint(times_s / unit_s).astype(np.int64)
    return [] if not len(whole) else [int(whole[0]), *np.diff(whole).tolist()]


def json_text(content: Json) -> Markup:
    """JSON that can stand in a `<script>`: no text in it ends the element or begins another."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, escaped in _UNSAFE.items():
        text = text.replace(sign, escaped)
    return Markup(text)


def marks_data(pictures: Iterable[Picture]) -> Json:
    """The words at each spot of the pictures that have any, and the curves that can be hidden, by name."""
    return {
        picture.name: {
            "x": [spot.x for spot in picture.spots],
            "y": [spot.y for spot in picture.spots],
            "of": [spot.of for spot in picture.spots],
            "words": [spot.words for spot in picture.spots],
            "series": [{"label": each.label, "color": each.color} for each in picture.series],
        }
        for picture in pictures
        if picture.spots
    }


# Curves, time series and slots, finer than the pictures.

BUCKETS = 1200
PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
MOST_STAYS = 14_000  # of all runs together
MOST_STEPS = 40_000
UNIT_S = 1e-4  # of times in slots: a tenth of a millisecond
Runs = Sequence[tuple[str, Records]]


def page_data(runs: Runs, style: Mapping[str, Style], lines: Sequence[Mapping[str, CdfCurve]]) -> Json:
    """The page's data, in the order of the runs. `lines` are each run's curves by their names."""
    return {
        "runs": [{"label": label, "color": style[label].color} for label, _ in runs],
        "curves": curves_data(quantities(None), lines),
        "timeline": timeline_data(strips(runs, BUCKETS), [label for label, _ in runs], shown_until(runs)),
        "slots": _slots(runs),
    }


def curves_data(shown: Sequence[Quantity], lines: Sequence[Mapping[str, CdfCurve]]) -> Json:
    """The latencies of the quantities at a few percentiles, for each run its `lines` by their names."""
    some = GRID[::4]
    grid = np.unique(np.concatenate((some, np.array(PERCENTILES), GRID[-41::8])))
    found = {}
    for quantity in shown:
        of_runs = [each[quantity.name] for each in lines]
        found[quantity.name] = {
            "title": quantity.title,
            "drawn": top_percent(quantity, [one for one in of_runs if len(one.at_ms)]),
            "ms": [rounded(np.interp(grid, GRID, one.at_ms), 4) if len(one.at_ms) else None for one in of_runs],
            "samples": [one.samples for one in of_runs],
        }
    return {"percents": rounded(grid, 6), "quantities": found}


def timeline_data(panels: Sequence[Strip], labels: Sequence[str], end_s: float) -> Json:
    """The panels over [0, end_s], a line in each for every label."""
    found = [
        {
            "title": panel.title.replace("\n", " "),
            "limit": panel.limit,
            "linear": apart(panel.bands),
            "mean": [rounded(panel.bands[label].mean) for label in labels],
            "high": [rounded(panel.bands[label].high) for label in labels],
        }
        for panel in panels
    ]
    return {"end": end_s, "panels": found}


def _slots(runs: Runs) -> Json:
    everything = [stays(records) for _, records in runs]
    window_s = window(everything)
    from_s, to_s = _reach(everything, *window_s)
    packed = []
    for (_, records), stay in zip(runs, everything, strict=True):
        shown = stay.within(from_s, to_s)
        packed.append({**_stays(records, shown), **_steps(records, from_s, to_s, MOST_STEPS // len(runs))})
    return {"from": from_s, "to": to_s, "window": list(window_s), "unit": UNIT_S, "runs": packed}


def _reach(runs: Sequence[Stays], from_s: float, to_s: float) -> tuple[float, float]:
    """The widest stretch around the window that has few enough stays: the whole run where it is short."""
    some = [stay for stay in runs if len(stay)]
    if not some:
        return from_s, to_s
    first = min(float(stay.start_s[0]) for stay in some)
    last = max(float(stay.end_s.max()) for stay in some)
    share = 1.0
    while share > 1e-6:
        ends = from_s - share * (from_s - first), to_s + share * (last - to_s)
        if sum(len(stay.within(*ends)) for stay in some) <= MOST_STAYS:
            return ends
        share *= 0.8
    return from_s, to_s


def _stays(records: Records, stay: Stays) -> Json:
    """Columns of the stays: the start as a distance to the one before, the other times as lengths of phases."""
    edges = np.rint(np.stack([stay.start_s, stay.computed_s, stay.prefilled_s, stay.done_s, stay.end_s]) / UNIT_S)
    lengths = np.diff(edges, axis=0).astype(np.int64)
    rows = stay.row
    named = None if records.request_ids is None else [records.request_id(row) for row in rows.tolist()]
    return {
        "slots": records.max_num_seqs,
        "slot": assign(stay).tolist(),
        "start": steps_between(stay.start_s, UNIT_S),
        "lengths": lengths.tolist(),
        "row": rows.tolist(),
        "id": named,
        "input": records.requests.input_tokens[rows].tolist(),
        "output": records.requests.output_tokens[rows].tolist(),
    }


def _steps(records: Records, from_s: float, to_s: float, most: int) -> Json:
    """The ends of the first replica's steps, and when decodes stood still; nothing where these are too many."""
    mine = records.rows.of_replicas(0, 1)
    first, last = (int(mine.first_step[0]), int(mine.first_step[-1] + mine.repeat[-1])) if len(mine.repeat) else (0, 0)
    ends = records.step_end_s[first:last]
    ends = ends[(ends >= from_s) & (ends <= to_s)]
    begin, end = stalls(records, from_s, to_s)
    both = np.stack([begin, end], axis=1).ravel() if len(begin) <= most // 4 else np.zeros(0)
    return {"steps": steps_between(ends, UNIT_S) if len(ends) <= most else None, "stalls": steps_between(both, UNIT_S)}
