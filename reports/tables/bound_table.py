"""What no scheduler can do better, beside what policies reach: a line a metric."""

from collections.abc import Mapping

from reports.tables.terminal import Terminal, aligned
from reports.units import MISSING, fitted, latency, short
from simulator.metrics.metric import FRACTION, MS
from simulator.metrics.table import METRICS

Values = Mapping[str, float]
SLACK = 0.25  # a best run farther from its bound says little: the bound may be slack, or the policies poor


def bound_table(
    bounds: Mapping[str, tuple[float, str]],
    reached: Mapping[str, Values],
    held: Mapping[str, Values],
    terminal: Terminal,
) -> str:
    """Each bound with the name of its relaxation, what each run reaches, and how close the best of them comes.

    `held` has for each run the bounds that hold for it: the others say nothing of it, and it is not the best there.
    """
    labels = [fitted(label, 40) for label in reached]
    rows = [("metric", "proven by", "bound", *labels, "best run")]
    for key, (value, by) in bounds.items():
        if key.startswith("median_"):
            continue
        known = {label: of_run[key] for label, of_run in reached.items() if key in of_run}
        comparable = [known[label] for label in known if key in held[label]]
        cells = [_value(key, known[label]) if label in known else MISSING for label in reached]
        rows.append((METRICS[key].title, by, _value(key, value), *cells, gap_words(key, value, comparable)))
    if len(rows) == 1:
        return "No metric is bounded.\n"
    return f"{terminal.paint('No scheduler can do better', 'title')}\n{aligned(rows, 2, terminal.width)}\n"


def gap_words(key: str, value: float, reached: list[float]) -> str:
    """How far the best run is from the bound, in words; the bound is said to be slack where that is far."""
    if not reached:
        return MISSING
    better = METRICS[key].better or -1
    best = max(reached) if better > 0 else min(reached)
    low, high = sorted((abs(value), abs(best)))
    if not low:
        return "reached" if not high else "slack"
    gap = high / low - 1
    if gap < 0.0005:
        return "reached"
    if gap > 1:
        return f"{short(high / low)} times it, slack"
    return f"within {100 * gap:.2g} %" + (", slack" if gap > SLACK else "")


def _value(key: str, value: float) -> str:
    metric = METRICS[key]
    if metric.unit == FRACTION:
        return f"{100 * value:.1f} %"
    return latency(value) if metric.unit == MS else f"{short(value)} {metric.unit}"
