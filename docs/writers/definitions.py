"""The table of docs/metrics.md: every metric by its key of summary.json."""

from docs.writers.tables import texts
from reports.tables.details import SHOWN
from simulator.metrics.latency import LATENCIES


def markdown() -> str:
    """The definitions as a table."""
    rows = [(name, latency.definition, latency.remark) for name, latency in LATENCIES.items()]
    rows += [(metric.key, metric.definition, metric.remark) for metric in SHOWN]
    told = ((key, f"{definition}{f'; {remark}' if remark else ''}") for key, definition, remark in rows)
    return "\n".join(texts(("name", "definition"), told)) + "\n"
