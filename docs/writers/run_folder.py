"""The page of a run folder's files, docs/run-folder.md."""

import re
from collections.abc import Iterator, Sequence

from docs.writers.tables import texts
from simulator.metrics.metric import Metric

_HEAD = """# A run folder, file by file

This page is written from the code (`make pages PAGES=run-folder`).

`batchlab run` writes a folder, and so do `compare` (one for each policy and seed), `serve` and `validate`. Equal runs
write equal bytes. Times are seconds on the clock of the run, which starts at 0; latencies are milliseconds. Tables are
gzipped CSV with a header and all digits of numbers. A field is empty if the event never happened. Python has the same
tables as data frames: `result.requests`, `result.steps`.
"""
_EXPORTS = """## Exports

`batchlab export RUN_DIR --format perfetto` writes a run in the format of another tool. It reads the rows of the run and
writes beside them, or to `--out`. `--format` may be given several times. If a format needs a package that is missing,
the error says which extra brings it.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    from reports.exports.exported_run import export_formats
    from scenarios.runs.storage.run_folder import OTHER_FILES, RUN_FILES, TABLES
    from simulator.metrics.summary import METRICS

    yield _HEAD
    yield from _table(("file", "what it is"), [(f"`{name}`", told) for name, told in RUN_FILES.items()])
    for name, (told, columns) in TABLES.items():
        yield f"\n## {name}\n\n{told}\n"
        rows = [(f"`{column}`", unit, meaning) for column, (unit, meaning) in columns.items()]
        yield from _table(("column", "unit", "meaning"), rows)
    yield f"\n## summary.json\n\n{_SUMMARY}\n"
    metrics = [metric for metric in METRICS.values() if metric.by_run and not _is_told(metric)]
    yield from _table(("key", "unit", "definition"), list(map(_metric, metrics)))
    yield f"\n{_EXPORTS}"
    formats = [
        (f"`{name}`", ", ".join(f"`{file}`" for file in each.files), each.title, each.note)
        for name, each in export_formats().items()
    ]
    yield from _table(("format", "files", "for", "what is in it"), formats)
    yield "\n## Folders of other verbs\n"
    yield from _table(("file", "verb, and what it is"), [(f"`{name}`", told) for name, told in OTHER_FILES.items()])


_SUMMARY = """One object. For each latency (`ttft_ms`, `tpot_ms`, `itl_ms`, `e2el_ms`, `queue_time_ms`) there are
`mean_`, `median_`, `std_`, `p50_`, `p90_`, `p95_` and `p99_`. `null` means undefined. After the keys below follow,
where they apply: `groups` (the columns of replicas.csv.gz for each group of a fleet), `slo_met` and `slo_targets`
(each target with its limit, value and excess), `warmup` (where it ends), `prediction` (the interval from `low` to
`high` that holds a real server's metric with the probability `coverage`, its `basis`, its `envelope`, and why; [Runs
of real servers](served.md)), and `provenance`: model, GPU, step costs with their known error and the source of each
part, times of host and front end, seed and version. `schema_version` moves when a key changes or goes."""


_OTHERS = re.compile(r"(median|std|p\d+)_(ttft|tpot|itl|e2el|queue_time)_ms")


def _is_told(metric: Metric) -> bool:
    """Whether the text above the table tells of it: another statistic of a latency than the mean."""
    return _OTHERS.fullmatch(metric.key) is not None


def _metric(metric: Metric) -> tuple[str, str, str]:
    remark = f"; {metric.remark}" if metric.remark else ""
    return f"`{metric.key}`", metric.unit, f"{metric.definition}{remark}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    return texts(head, ([cell.replace("|", "\\|") for cell in row] for row in rows))
