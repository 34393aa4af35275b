"""The table of docs/metrics.md: every metric by its key of summary.json."""

import re
from pathlib import Path

from reports.tables.definitions import SHOWN
from simulator.metrics.latency import LATENCIES

_HEAD = "| name | definition |\n| --- | --- |\n"


def markdown() -> str:
    """The definitions as a table."""
    rows = [(name, latency.definition, latency.remark) for name, latency in LATENCIES.items()]
    rows += [(metric.key, metric.definition, metric.remark) for metric in SHOWN]
    return _HEAD + "".join(f"| {key} | {told}{f'; {remark}' if remark else ''} |\n" for key, told, remark in rows)


def write(page: Path) -> None:
    """Put the table in the place of the one that stands in a page."""
    text = page.read_text(encoding="utf-8")
    written = re.sub(re.escape(_HEAD) + r"(?:\|.*\n)*", lambda _: markdown(), text)
    page.write_text(written, encoding="utf-8", newline="\n")
