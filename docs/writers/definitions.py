"""The table of docs/metrics.md: every metric by its key of summary.json."""

from reports.tables.definitions import SHOWN
from simulator.metrics.latency import LATENCIES

_HEAD = "| name | definition |\n| --- | --- |\n"


def markdown() -> str:
    """The definitions as a table."""
    rows = [(name, latency.definition, latency.remark) for name, latency in LATENCIES.items()]
    rows += [(metric.key, metric.definition, metric.remark) for metric in SHOWN]
    return _HEAD + "".join(f"| {key} | {told}{f'; {remark}' if remark else ''} |\n" for key, told, remark in rows)
