"""Tables beside the verdict: classes, waits, rejections, differences, bounds, definitions, basis of the figures."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reports.tables.terminal import Terminal, aligned
from reports.units import MISSING, column_unit, decimals, fitted, latency, number, one_line, short
from reports.verdict.shown_metrics import COLUMNS, Column, Summaries, Summary, column_of, joined, seeds, values
from simulator.metrics.confidence import PERCENTILE_KEYS, metric_difference, percentile_differences
from simulator.metrics.latency import LATENCIES, Slo
from simulator.metrics.metric import FRACTION, MS
from simulator.metrics.summary import METRICS, summarize_by_class
from simulator.metrics.usage import by_group, by_replica
from simulator.metrics.waits import first_waits
from simulator.results.records import Records, Status
from simulator.statistics import Interval


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table as text: `head` names the columns with their units, `text_columns` leading ones are not numbers."""

    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    text_columns: int = 1

    def text(self, width: int) -> str:
        """Write the table in lines of at most `width` characters."""
        return aligned([self.head, *self.body], self.text_columns, width)


ByClass = Mapping[str, Mapping[str, Summary]]
"""By label, then by class."""

PER_CLASS: tuple[Column, ...] = tuple(
    column_of(METRICS[key])
    for key in (
        *("completed", "rejected", "unfinished", "slo_attainment"),
        *("p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p99_e2el_ms"),
        *("preemptions", "longest_queue_time_ms", "longest_requeue_time_ms"),
    )
)


def class_table(
    runs: Sequence[tuple[str, Records]], slo: Slo | None, *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> TableRows | None:
    """`class_rows` of `class_summaries`; None where there is but one class."""
    by_run = class_summaries(runs, slo, warmup_s=warmup_s, cooldown_s=cooldown_s)
    return None if by_run is None else class_rows(by_run)


def class_summaries(
    runs: Sequence[tuple[str, Records]], slo: Slo | None, *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> ByClass | None:
    """For each run the summaries of its classes; None where there is but one class."""
    by_run = {
        label: summarize_by_class(records, slo=slo, warmup_s=warmup_s, cooldown_s=cooldown_s)
        for label, records in runs
        if len(records.class_names) > 1
    }
    return by_run if len(_names(by_run)) > 1 else None


def _names(by_run: ByClass) -> list[str]:
    return list(dict.fromkeys(name for classes in by_run.values() for name in classes))


def class_words(by_run: ByClass, of: str = "") -> str:
    """Name the run that keeps the SLO for most requests of each class, and its lead; '' without an SLO.

    `of` says which of several seeds the summaries are of.
    """
    parts = []
    for name in _names(by_run):
        found = [
            (float(value), label)
            for label, classes in by_run.items()
            if name in classes and (value := classes[name].get("slo_attainment")) is not None
        ]
        found.sort(key=lambda item: -item[0])
        if len(found) > 1 and found[0][0] > found[-1][0]:
            top = [label for share, label in found if share == found[0][0]]
            rest = [f"{label} {100 * share:.1f} %" for share, label in found[len(top) :]]
            parts.append(f"for {name} {joined(top)} ({100 * found[0][0]:.1f} %; {', '.join(rest)})")
    return f"Most requests within the SLO, by class{of}: {'; '.join(parts)}." if parts else ""


def class_rows(by_run: ByClass) -> TableRows:
    """One line for each class and run, classes first."""
    names = _names(by_run)
    pairs = [(name, label) for name in names for label in by_run if name in by_run[label]]
    columns = [
        column
        for column in PER_CLASS
        if any(by_run[label][name].get(column.key) for name, label in pairs)  # what is 0 for all says nothing
    ]
    cells = [_column([by_run[label][name] for name, label in pairs], column) for column in columns]
    body = tuple(
        (*pair, *values) for pair, values in zip(pairs, zip(*(texts for _, texts in cells), strict=True), strict=True)
    )
    return TableRows(("class", "run", *(title for title, _ in cells)), body, 2)


def _column(summaries: Sequence[Summary], column: Column) -> tuple[str, list[str]]:
    """The column's title with its unit, and its cells; latencies that are far apart carry their own units."""
    found = [summary.get(column.key) for summary in summaries]
    numbers = [float("nan") if value is None else float(value) * column.scale for value in found]
    if column.unit == MS:
        unit = column_unit(numbers)
        if unit is None:
            return column.title, [latency(value) if value == value else MISSING for value in numbers]
        numbers = [value / unit.milliseconds for value in numbers]
        title = f"{column.title} ({unit.unit})"
        if unit.unit == MS:
            return title, [number(value, decimals([value], 1)) for value in numbers]
        return title, [number(value, decimals(numbers, 2)) for value in numbers]
    title = f"{column.title} (%)" if column.unit == "%" else column.title
    places = column.places
    return title, [number(value, places if places is not None else decimals([value], 1)) for value in numbers]


MOST_REPLICAS = 16
"""Beyond so many replicas a table has a line a group instead."""


def replica_table(
    runs: Sequence[tuple[str, Records]], *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> TableRows | None:
    """A line for each replica, or each group where replicas are many; None where every run has one replica."""
    body: list[tuple[str, ...]] = []
    cuts = {"warmup_s": warmup_s, "cooldown_s": cooldown_s}
    for label, records in runs:
        if records.replicas == 1:
            continue
        if records.replicas <= MOST_REPLICAS:
            columns = by_replica(records, **cuts)
            names = [group.name for group in records.sizes for _ in range(group.replicas)]
            body += [(label, name, str(i), *_part(columns.entry(i))) for i, name in enumerate(names)]
        else:
            groups = by_group(records, **cuts).items()
            body += [(label, name, f"{group.replicas[0]} replicas", *_part(group.entry(0))) for name, group in groups]
    head = ("run", "group", "replica", "requests", "input tokens", "output tokens", "busy (%)", "KV mean (%)")
    rows = TableRows((*head, "KV peak (%)", "prefix hits (%)", "preemptions"), tuple(body), 3)
    return _telling(rows, ("run", "group", "prefix hits (%)", "preemptions"))


def _part(entry: Mapping[str, float | int | None]) -> tuple[str, ...]:
    counts = [number(entry[key] or 0) for key in ("requests", "input_tokens", "output_tokens")]
    keys = ("busy_fraction", "kv_utilization_mean", "kv_utilization_peak", "prefix_cache_hit_rate")
    shares = [MISSING if (share := entry[key]) is None else number(100.0 * share, 1) for key in keys]
    return (*counts, *shares, number(entry["preemptions"] or 0))


def starvation_table(runs: Sequence[tuple[str, Records]], most: int = 3) -> TableRows | None:
    """The requests of each run that waited longest, before they were first scheduled and after preemptions together.

    A request that was never scheduled waited until its client left or the run ended; rejected ones do not wait. None
    where none waited.
    """
    body = []
    for label, records in runs:
        requests = records.requests
        arrived, scheduled = first_waits(records)
        first = np.nan_to_num(scheduled - arrived)
        waited = first + requests.requeued_s
        for row in np.lexsort((np.arange(len(waited)), -waited))[:most].tolist():
            if waited[row] <= 0.0:
                break
            body.append(
                (
                    label,
                    records.request_id(row),
                    records.class_names[int(requests.class_index[row])],
                    number(int(requests.priority[row])),
                    number(float(requests.arrival_s[row]), 1),
                    number(int(requests.input_tokens[row])),
                    number(int(requests.output_tokens[row])),
                    short(float(first[row])),
                    short(float(requests.requeued_s[row])),
                    number(int(requests.preemptions[row])),
                    Status(int(requests.status[row])).name.lower(),
                )
            )
    head = (
        "run", "request", "class", "priority", "arrived (s)", "input (tokens)", "output (tokens)", "waited first (s)",
        "waited again (s)", "preemptions", "outcome",
    )  # fmt: skip
    return _telling(
        TableRows(head, tuple(body), 3), ("class", "priority", "waited again (s)", "preemptions", "outcome")
    )


def _telling(rows: TableRows, optional: Sequence[str]) -> TableRows | None:
    """The table without those of the optional columns that say the same in every line; None without lines."""
    if not rows.body:
        return None
    same = [i for i, name in enumerate(rows.head) if name in optional and len({line[i] for line in rows.body}) == 1]
    keep = [i for i in range(len(rows.head)) if i not in same]
    text_columns = sum(i < rows.text_columns for i in keep)
    body = tuple(tuple(line[i] for i in keep) for line in rows.body)
    return TableRows(tuple(rows.head[i] for i in keep), body, text_columns)


def rejection_table(runs: Sequence[tuple[str, Records]], most: int = 5) -> TableRows | None:
    """The reasons of rejections, the most frequent first, each with a request as an example; None without any."""
    body = []
    for label, records in runs:
        counts = Counter(records.reject_reasons.values())
        example: Mapping[str, int] = {why: row for row, why in sorted(records.reject_reasons.items(), reverse=True)}
        for why, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]:
            body.append((label, why, records.request_id(example[why]), number(count)))
        left = sum(counts.values()) - sum(count for _, count in counts.most_common(most))
        if left > 0:
            body.append((label, "other reasons", MISSING, number(left)))
    return TableRows(("run", "reason", "for instance request", "requests"), tuple(body), 3) if body else None


# Differences between runs on the same requests, with intervals: over seeds, or within one run of each.

KEYS = ("p50_ttft_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms", "output_throughput", "slo_attainment")

OVER_SEEDS = "Paired by seed, with 95 % intervals of the mean difference; * excludes 0."
WITHIN_RUNS = (
    "Paired by request, with 95 % intervals by the bootstrap over blocks of neighbouring requests; * excludes 0. "
    "A dash: too few requests, or the runs served different ones."
)


def differences(
    summaries: Summaries, records: Mapping[str, Records], *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> dict[str, dict[str, Interval]]:
    """The differences of each later run to the first, by key; those of `KEYS` that are known."""
    baseline, *others = summaries
    if seeds(summaries) > 1:
        return {
            label: {
                key: found
                for key in KEYS
                if len(summaries[label]) == len(summaries[baseline])
                and (found := metric_difference(key, values(summaries[label], key), values(summaries[baseline], key))).n
                > 1
            }
            for label in others
        }
    keys = [key for key in KEYS if key in PERCENTILE_KEYS]
    cuts = {"warmup_s": warmup_s, "cooldown_s": cooldown_s}
    return {label: percentile_differences(records[label], records[baseline], keys, **cuts) for label in others}


def difference_table(found: Mapping[str, Mapping[str, Interval]]) -> TableRows | None:
    """The differences as rows of text, a run a row; None where none is known."""
    keys = [key for key in KEYS if any(key in of_run for of_run in found.values())]
    if not keys:
        return None
    columns = [_difference_column(key, [of_run.get(key) for of_run in found.values()]) for key in keys]
    head = tuple(f"{COLUMNS[key].title} ({COLUMNS[key].unit})" for key in keys)
    body = tuple((label, *cells) for label, *cells in zip(found, *columns, strict=True))
    return TableRows(("run", *head), body)


def _difference_column(key: str, found: list[Interval | None]) -> list[str]:
    scale = COLUMNS[key].scale
    places = COLUMNS[key].decimals(each.mean * scale for each in found if each is not None)
    return [MISSING if each is None else _cell(each, scale, places) for each in found]


def _cell(found: Interval, scale: float, places: int) -> str:
    mean, low, high = (number(value * scale, places) for value in (found.mean, found.low, found.high))
    sign = "+" if found.mean > 0 and mean.strip("0.,") else ""
    return f"{sign}{mean} [{low}, {high}]{'*' if found.excludes_zero else ' '}"


# What no scheduler can do better, beside what policies reach: a line a metric.

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


# The definitions of the metrics that a report shows, and the names that other tools have for them.

LEGEND = (
    "Of a request: t0 arrival, tq first time scheduled, t1 first output token, tn last output token, n output tokens. "
    "Duration: first arrival to last token of the measured requests. Percentiles are linear (numpy.percentile), over "
    "finished requests."
)

_LATENCY_KEYS = tuple(key for key in METRICS if key.endswith(tuple(f"_{name}_ms" for name in LATENCIES)))
SHOWN = tuple(METRICS[key] for key in METRICS if key in COLUMNS and key not in _LATENCY_KEYS)

METRICS_TABLE = TableRows(
    ("metric", "definition", "to know"),
    (
        *((each.title, each.definition, f"{each.words}; {each.remark}") for each in LATENCIES.values()),
        *((metric.title, metric.definition, metric.remark) for metric in SHOWN),
    ),
    3,
)

OTHER_TOOLS = TableRows(
    ("elsewhere", "what it is", "here"),
    (
        ("vLLM bench serve", "TTFT, TPOT, ITL, E2EL, goodput", "the same names and definitions"),
        ("AIPerf: ITL", "(tn - t1) / (n - 1) of each request", "TPOT"),
        ("AIPerf: ICL", "gaps between neighbouring tokens", "ITL"),
        ("GuideLLM: ITL", "(tn - t1) / (n - 1), weighted by n - 1", "TPOT weighted by n - 1, the mean of ITL"),
        ("GuideLLM: TPOT", "(tn - t0) / n", "none: it includes the TTFT"),
    ),
    3,
)


# The basis of a report's figures: model, GPU, step costs and their known error, version; a step's cost by part.

KEY = "provenance"
"""The key of a summary."""


def provenance_of(summary: Summary) -> Mapping[str, Any]:
    """A summary's provenance; empty where it has none."""
    found: object = summary.get(KEY)
    return found if isinstance(found, Mapping) else {}


def provenance_words(summaries: Summaries) -> str:
    """Model, hardware, step costs, seeds and version of the runs in a line; '' where they are not known.

    What differs between runs is named with all its values.
    """
    known = [each for runs in summaries.values() for each in map(provenance_of, runs) if each]
    if not known:
        return ""
    costs = _distinct(cost_words(each["cost"]) for each in known)
    parts = [
        f"{_distinct(map(_hardware, known))}",
        f"step costs: {costs}",
        f"seed {_seeds([each['seed'] for each in known])}",
        f"batchlab {_distinct(each['version'] for each in known)}",
    ]
    return "; ".join(parts)


def cost_words(cost: Mapping[str, Any]) -> str:
    """A kind of step costs and how far it is known to be off."""
    error = cost["error"]
    if isinstance(error, Mapping):
        kinds = ", ".join(f"{key.removesuffix('_mape_percent')} {value:.1f} %" for key, value in error.items())
        error = f"mean error on held-out kernels: {kinds}"
    profile = f" {cost['profile']}" if "profile" in cost else ""
    return f"{cost['kind']}{profile} ({error})"


def _hardware(each: Mapping[str, Any]) -> str:
    stages, replicas = each.get("pipeline_parallel", 1), each["replicas"]
    ranks = each["tensor_parallel"] * stages
    gpu = f"{ranks} x {each['gpu']}" if ranks > 1 else each["gpu"]
    gpu += f" in {stages} stages" if stages > 1 else ""
    return f"{each['model']} on {gpu}, {replicas} replica{'s' if replicas != 1 else ''}"


def _distinct(texts: Any) -> str:
    return " / ".join(dict.fromkeys(texts))


def _seeds(seeds: Sequence[int]) -> str:
    """0; 0 and 3; 0 to 4."""
    found = sorted(set(seeds))
    if len(found) > 2 and found == [*range(found[0], found[-1] + 1)]:
        return f"{found[0]} to {found[-1]}"
    return ", ".join(map(str, found))


HEAD = ("part", "how", "in words")
KINDS = {
    "linear": ("given", "the scenario's coefficients"),
    "roofline": ("assumed", "bytes and operations over the GPU's datasheet"),
}
"""The source of a step's time, by the kind of its costs, where it has no parts."""

Row = tuple[str, str, str]


def cost_tables(summaries: Summaries) -> list[tuple[str, TableRows]]:
    """A table for each way that steps were priced, with the runs, or groups of a fleet, that it is of; '' for all."""
    told: dict[tuple[Row, ...], list[str]] = {}
    for label, runs in summaries.items():
        for of_group, found in _groups(provenance_of(runs[0]) if runs else {}):
            name = f"{label}, {of_group}" if of_group and len(summaries) > 1 else of_group or label
            told.setdefault(tuple(cost_rows(found)), []).append(name)
    told.pop((), None)
    tables = [(joined(names), TableRows(HEAD, rows, len(HEAD))) for rows, names in told.items()]
    return [("", tables[0][1])] if len(tables) == 1 else tables


def is_of_steps(note: str) -> bool:
    """Return whether a run's note says how sensitive it is to step times (`scenarios.runs.runner`)."""
    return "TTFT" in note and "step time" in note


def cost_rows(found: Mapping[str, Any]) -> list[Row]:
    """The lines of one provenance; none of a summary that has no such thing."""
    cost = found.get("cost")
    if not isinstance(cost, Mapping):
        return []
    parts = cost.get("composed") or cost.get("fitted")
    rows: list[Row] = [] if parts else [("step", *KINDS.get(str(cost["kind"]), ("", "")))]
    for name, how in (parts or {}).items():
        word, _, words = how.partition(", ")
        rows.append((one_line(name, 120), word, words))
    rows += [_host(found.get("host")), _front_end(found.get("front_end"))]
    return [*rows, *_settings(found.get("defaults"))]


def _settings(told: Mapping[str, Any] | None) -> Iterator[Row]:
    """Yield which settings are the server's own, and which are not; nothing under plain defaults."""
    if told is not None:
        yield "settings", "default", f"{told['of']}: {_keys(told['taken'], ' ')}"
        if told["otherwise"]:
            yield "settings", "given", f"not as {told['of']} by default: {_keys(told['otherwise'], ', not ')}"
        for path, why in told.get("gave_way", {}).items():
            yield "settings", "default", f"{path} is false: {why}"
        for path, asked in told.get("unknown", {}).items():
            yield "settings", "given", f"{path} {asked} is not known: the nearest that is stands for it"


def _keys(values: Mapping[str, Any], between: str) -> str:
    return "; ".join(f"{path.partition('.')[2]}{between}{value}" for path, value in values.items())


def _groups(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A provenance by the groups of its fleet."""
    groups: Sequence[Mapping[str, Any]] = found.get("fleet", ())
    for group in groups:
        yield str(group.get("name", "")), group
    if not groups:
        yield "", found


def _host(host: Mapping[str, Any] | None) -> Row:
    if host is None:
        return "host", "nothing", "no time of the host's is added to a step"
    how, of = _source(str(host["from"]))
    return "host", how, f"{_ms(host['step_s'])} a step and {_us(host['per_seq_s'])} for each request{of}"


def _front_end(front_end: Mapping[str, Any] | None) -> Row:
    if front_end is None:
        return "front end", "nothing", "times count from the arrival at the engine"
    how, of = _source(str(front_end["from"]))
    fixed, each = _ms(front_end["fixed_s"]), _us(front_end["per_running_s"])
    prompt = f", {_us(token)} for each prompt token" if (token := front_end.get("per_prompt_token_s")) else ""
    return "front end", how, f"{fixed} and {each} for each running request{prompt}{of}"


def _source(text: str) -> tuple[str, str]:
    """One word for where figures come from, and the rest of it."""
    if text in ("", "the scenario"):
        return "given", ""
    how = "assumed" if "assumed" in text else "measured" if not text.startswith("fitted") else "fitted"
    return how, f" ({text})" if text != how else ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.3g} microseconds"
