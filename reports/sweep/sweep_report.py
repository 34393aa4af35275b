"""The report of a sweep: the best points, knees, fronts, heat maps, and what failed."""

from collections.abc import Sequence
from pathlib import Path

from reports.html import pieces as html
from reports.sweep.front import front_pictures, front_table
from reports.sweep.heatmap import heatmaps
from reports.sweep.load import goodput_picture, knee_table, load_picture, throughput_picture
from reports.sweep.points import Best, SweepPoint, SweepResult, best_points, column, points_named, titled, trades
from reports.tables.details import TableRows
from reports.units import intervals, number
from reports.verdict.shown_metrics import Column, Estimate

MOST_ROWS = 200
_TABLE = ("request_throughput", "output_throughput", "slo_attainment", "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms",
          "usd_per_million_output_tokens", "saturated")  # fmt: skip
_MORE = ("request_goodput", "p50_ttft_ms", "p50_tpot_ms", "p50_e2el_ms", "p99_itl_ms", "mean_batch_size",
         "batch_occupancy", "kv_utilization_peak", "queue_depth_mean", "preemptions",
         "prefix_cache_hit_rate", "rejected")  # fmt: skip
"""Columns that readers may add."""


def write_sweep_report(folder: Path, result: SweepResult) -> Path:
    """Write the pictures and the page into `folder`; return the path of report.html. Equal sweeps give equal bytes.

    Raises InputError where the folder cannot be written.
    """
    load = [each for make in (load_picture, goodput_picture, throughput_picture) if (each := make(result)) is not None]
    fronts, maps = front_pictures(result), heatmaps(result)
    found = best_points(result)
    rows, hidden = all_table(result)
    left = len(result.done) - MOST_ROWS
    more = [html.text(f"{left:,} more points are in table.csv.")] if left > 0 else []
    sections = [
        html.section(
            "The best points", html.paragraphs(best_words(result, found), "verdict"), html.table(best_table(found))
        ),
        html.section("Over the load", *map(html.figure, load), html.table(knee_table(result))),
        *(
            html.section(trade.title, html.figure(picture), html.table(front_table(result, trade)))
            for trade, picture in zip(trades(result), fronts, strict=True)
        ),
        html.section("Over two keys", *map(html.figure, maps)),
        html.section("Failed points", html.table(failed_table(result))),
        html.section("All points", html.table(rows, sortable=True, hidden=hidden), *more),
        html.section("Study", html.details("The study, as it was run", result.study)),
    ]
    title = f"{result.name}: a sweep of {', '.join(axis.title for axis in result.axes)}"
    return html.write_page(folder, title, _head(result), sections, [*load, *fronts, *maps])


def _head(result: SweepResult) -> str:
    seeds = f"{result.seeds} seeds each" if result.seeds > 1 else "one seed"
    failed = len(result.points) - len(result.done)
    lost = f"; {failed:,} failed" if failed else ""
    return f"{len(result.points):,} points, {seeds}{lost}. A simulation by batchlab."


def best_words(result: SweepResult, found: Sequence[Best]) -> list[str]:
    """The basis of the table of the best points, in words."""
    if not found:
        return ["All points came to the same results." if len(result.done) > 1 else "There is one point only."]
    equal = f"; equal to it: {points_named(found[0].equal)}" if found[0].equal else ""
    words = [f"{found[0].title}: {points_named([found[0].point])}{equal}."]
    if result.seeds > 1:
        words.append(
            "Two points are equal if the paired 95 % interval of their difference over the same seeds holds 0. The "
            "best of many points was also lucky. Before you trust a difference as small as its interval, run it again "
            "with other seeds."
        )
    else:
        words.append("One seed has no interval: points within 2 % are called equal. --seeds 5 tells more.")
    steady = sum(not point.is_saturated for point in result.done)
    if 0 < steady < len(result.done):
        count = len(result.done) - steady
        these = "saturated point is left out: it has" if count == 1 else "saturated points are left out: they have"
        words.append(f"{count:,} {these} no steady state.")
    elif not steady:
        words.append("All points are saturated, so that their latencies depend on how long the runs are.")
    return words


def best_table(found: Sequence[Best], named: int = 5) -> TableRows | None:
    """The best point by each measure, its value with the interval over seeds, and its equals, so many by name."""
    if not found:
        return None
    body = []
    for best in found:
        shown = column(best.key)
        cell = _cells(shown, [best.point.estimate(best.key, shown.scale)])[0]
        equal = "none" if not best.equal else points_named(best.equal, named)
        body.append((best.title, best.point.label, f"{cell} {shown.unit}".rstrip(), equal))
    return TableRows(("best by", "point", "value", "equal to it"), tuple(body), text_columns=4)


def failed_table(result: SweepResult) -> TableRows | None:
    """The points that failed, with the error of their first failed seed."""
    body = tuple((point.label, point.error) for point in result.points if point.error)
    return TableRows(("point", "error"), body[:MOST_ROWS], text_columns=2) if body else None


def all_table(result: SweepResult) -> tuple[TableRows, list[int]]:
    """Every point with what varies among its metrics, and the columns that are hidden until readers choose them."""
    first = [key for key in _TABLE if result.known(key)]
    keys = first + [key for key in _MORE if key not in first and result.varies(key)]
    points = result.done[:MOST_ROWS]
    columns = [_column(points, column(key), result) for key in keys]
    body = tuple((point.label, *cells) for point, *cells in zip(points, *columns, strict=True))
    return TableRows(("point", *map(titled, keys)), body), list(range(1 + len(first), 1 + len(keys)))


def _column(points: Sequence[SweepPoint], shown: Column, result: SweepResult) -> list[str]:
    if shown.flag:
        return ["yes" if point.is_saturated else "no" for point in points]
    return _cells(shown, [point.estimate(shown.key, shown.scale) for point in points])


def _cells(shown: Column, found: Sequence[Estimate]) -> list[str]:
    places = shown.decimals(each.mean for each in found)
    behind = intervals([(each.mean, each.low, each.high) for each in found], places)
    return [f"{number(each.mean, places)} {spread}".rstrip() for each, spread in zip(found, behind, strict=True)]
