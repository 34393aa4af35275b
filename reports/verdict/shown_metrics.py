"""The metrics of the verdict, their means over seeds, real differences, and the targets of an SLO each run meets."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from reports.units import decimals, latency, short
from simulator.metrics.confidence import PERCENTILE_KEYS, metric_difference, metric_interval, run_percentiles
from simulator.metrics.latency import LATENCIES, Slo, limited_requests
from simulator.metrics.metric import FLAG, FRACTION, MS, REQUESTS, Metric
from simulator.metrics.outcomes import ATTAINMENT, Outcome, mean_outcomes, outcomes_of
from simulator.metrics.summary import METRICS, OWN, PREDICTED, PREDICTION
from simulator.metrics.waits import Overload, overload
from simulator.metrics.window import Bools, measured_window
from simulator.results.records import Records, Status
from simulator.statistics import PercentileInterval, mean_interval

Summary = Mapping[str, float | int | bool | None]
Summaries = Mapping[str, Sequence[Summary]]
"""For each label the summaries of its runs, one a seed, in the same order of seeds for every label."""


@dataclass(frozen=True, slots=True)
class Column:
    """A key of a summary as the table shows it: times `scale`, in `unit`. `better`: +1 more, -1 less, 0 neither."""

    key: str
    title: str
    unit: str = ""
    scale: float = 1.0
    better: int = 0
    flag: bool = False  # yes or no
    places: int | None = None  # decimals; None: three significant digits of the smallest value
    most: int = 3  # of these decimals
    is_predicted: bool = False  # the ends between which a real server's lies, and not the run's own value

    def decimals(self, values: Iterable[float]) -> int:
        """Decimals of a column that holds these values."""
        return decimals(values, self.most) if self.places is None else self.places


def column_of(metric: Metric) -> Column:
    """The column of a metric: shares in per cent, flags as yes or no, counts with one decimal where they are means."""
    if metric.unit == FRACTION:
        return Column(metric.key, metric.title, "%", scale=100.0, better=metric.better, places=1)
    if metric.unit == FLAG:
        return Column(metric.key, metric.title, flag=True, better=metric.better)
    most = 1 if metric.unit in ("", REQUESTS) else 3
    return Column(metric.key, metric.title, metric.unit, better=metric.better, most=most)


@dataclass(frozen=True, slots=True)
class Block:
    """Columns that answer one question; shown where some run has a value, not 0, of `where`, if it names a metric."""

    title: str
    columns: tuple[Column, ...]
    where: str = ""


def _block(title: str, *keys: str, where: str = "") -> Block:
    return Block(title, tuple(column_of(METRICS[key]) for key in keys), where)


def _predicted(key: str) -> Column:
    return replace(column_of(METRICS[key]), better=0, is_predicted=True)


BLOCKS: tuple[Block, ...] = (
    _block(
        "What the clients got",
        *("completed", "rejected", "unfinished", "request_throughput", "output_throughput", "request_goodput"),
        *("slo_attainment", "usd_per_million_output_tokens"),
    ),
    _block(
        "What became of them",
        "served",
        "given_up",
        "attempts_per_request",
        "aborted",
        "aborted_computed_tokens",
        where="aborted",
    ),
    _block("Latency", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "p99_e2el_ms"),
    Block("On a real server", tuple(_predicted(key) for key in PREDICTED), where=PREDICTION),
    _block(
        "Inside the engine",
        *("batch_occupancy", "kv_utilization_peak", "preemptions", "padding_fraction", "wasted_slot_fraction"),
        *("balance_cv", "least_busy_fraction", "most_busy_fraction"),
        "saturated",
    ),
    _block(
        "Drafts",
        *("spec_decode_acceptance_length", "spec_decode_acceptance_rate", "spec_decode_wasted_tokens"),
        "output_tokens_per_step",
        where="spec_decode_num_drafts",
    ),
    _block(
        "Adapters",
        *("lora_hit_rate", "lora_shut_out_rate", "mean_lora_shut_out_ms", "p99_lora_shut_out_ms"),
        where="lora_loads",
    ),
    _block(
        "KV on the host",
        *("kv_offload_hit_rate", "kv_offload_load_gib", "kv_offload_store_gib", "kv_offload_load_busy"),
        where="kv_offload_store_gib",
    ),
    *(
        _block(
            f"KV in the {nth} further tier",
            *(f"kv_tier_{tier}_{what}" for what in ("hit_rate", "load_gib", "store_gib", "load_busy")),
            where=f"kv_tier_{tier}_store_gib",
        )
        for tier, nth in ((1, "first"), (2, "second"))
    ),
    _block(
        "At the gateway",
        *("mean_gateway_wait_ms", "p99_gateway_wait_ms", "gateway_held_rate", "gateway_shed", "gateway_expired"),
        where="gateway_held_rate",
    ),
    _block(
        "Regret of the router",
        *("overlap_lost_rate", "overlap_missed", "mean_queue_excess", "p99_queue_excess"),
        *("belady_hit_rate", "belady_pooled_hit_rate", "unlimited_hit_rate"),
        where="overlap_missed",
    ),
    _block(
        "Tasks of agents",
        *("mean_task_s", "p50_task_s", "p99_task_s", "tasks_done", "mean_task_requests"),
        *("mean_task_input_tokens", "mean_task_output_tokens"),
        where="tasks",
    ),
    _block(
        "Energy, rough",
        *("joules_per_output_token", "joules_per_output_token_low", "joules_per_output_token_high"),
        "grams_co2_per_million_output_tokens",
        where="joules_per_output_token",
    ),
    _block("Replicas", "mean_replicas", "peak_replicas", "scale_outs", "scale_ins", "gpu_hours", where="peak_replicas"),
)
COLUMNS: Mapping[str, Column] = {
    column.key: column for block in BLOCKS for column in block.columns if not column.is_predicted
}


def blocks_of(summaries: Summaries) -> tuple[Block, ...]:
    """The blocks of a table of these runs: with one of the user's own metrics, where there are some."""
    about: dict[str, Any] = {}
    for runs in summaries.values():
        for run in runs:
            about |= run.get(OWN) or {}  # type: ignore[arg-type] # an entry that is no metric
    own = [column_of(Metric(key, told["title"], told["unit"], "", None, told["better"])) for key, told in about.items()]
    return (*BLOCKS, Block("Metrics of your own", tuple(own))) if own else BLOCKS


# Means over seeds with their intervals, and whether a difference between two policies is real.
#
# All comparisons are paired by seed: the n-th summaries of two policies saw the same requests at the same times.


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds and the ends of its 95 % interval; both None for a single seed. NaN where undefined."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; twice the mean where there is none."""
        return (self.mean, self.mean) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        """The longer side of the interval."""
        return None if self.low is None or self.high is None else max(self.mean - self.low, self.high - self.mean)


def values(summaries: Sequence[Summary], key: str) -> list[float]:
    """The key of every seed's summary; NaN where it is undefined or missing."""
    found = (summary.get(key) for summary in summaries)
    return [math.nan if value is None else float(value) for value in found]


def estimate(summaries: Sequence[Summary], key: str, scale: float = 1.0) -> Estimate:
    """The mean over those seeds for which it is defined, and its interval within what is possible."""
    found = metric_interval(key, values(summaries, key))
    ends = (found.low * scale, found.high * scale) if found.n > 1 else (None, None)
    return Estimate(found.mean * scale, *ends)


def is_real(one: Sequence[Summary], other: Sequence[Summary], key: str) -> bool:
    """Return whether the paired 95 % interval of the difference excludes 0.

    One seed shows no difference, and neither do runs of different numbers of seeds: they cannot be paired.
    """
    if len(one) != len(other):
        return False
    return metric_difference(key, values(one, key), values(other, key)).excludes_zero


def ranked(summaries: Summaries, key: str, better: int) -> list[str]:
    """Labels from best to worst mean, those without a value left out; equals in the order given."""
    means = {label: estimate(runs, key).mean for label, runs in summaries.items()}
    return sorted((label for label, mean in means.items() if math.isfinite(mean)), key=lambda k: -better * means[k])


def best(summaries: Summaries, column: Column) -> tuple[str, ...]:
    """The labels to mark in a column: the best one, and one equal to it in every seed, if they beat all others.

    With several seeds the difference to each of the others must be real; with one it must only be there. None are
    marked where there is no other to beat, or where more than two are equal: then it is rather the others that stand
    out.
    """
    order = ranked(summaries, column.key, column.better) if column.better else []
    if not order:
        return ()
    first = summaries[order[0]]
    equals = [label for label in order if values(summaries[label], column.key) == values(first, column.key)]
    others = [summaries[label] for label in order if label not in equals]
    beats = len(first) == 1 or all(is_real(first, other, column.key) for other in others)
    return tuple(equals) if others and len(equals) <= 2 and beats else ()


def seeds(summaries: Summaries) -> int:
    """Seeds of each run: the most that any has."""
    return max((len(runs) for runs in summaries.values()), default=0)


def joined(names: Iterable[str]) -> str:
    """a, b and c."""
    listed = list(names)
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


# Runs held against an SLO: which targets each meets, and by which limits of a request the others miss it.

KEPT = 0.99  # the attainment asked for where an SLO has limits of a request and no target


@dataclass(frozen=True, slots=True)
class Miss:
    """A limit of a request: how many of the requests that have it (of `classes`, or all) exceed it."""

    name: str  # of the latency, as in `LATENCIES`
    classes: str | None  # a name, or several: a and b
    limit_ms: float
    misses: int
    requests: int
    p99_ms: float  # of these requests; NaN where none has the latency


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that a run's summary lacks: its worst overload, the limits that requests missed, and the intervals of the
    verdict table's percentiles, by key."""

    overload: Overload | None = None
    misses: tuple[Miss, ...] = ()
    percentiles: Mapping[str, PercentileInterval] = field(default_factory=dict)


def facts(records: Records, slo: Slo | None, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Facts:
    """The facts of a run, over its measured requests. An overload counts waits above the SLO's limit of the TTFT."""
    limit_ms = None
    if slo is not None:
        targets = (slo.targets.get(f"p{p}_ttft_ms") for p in (99, 95, 90))
        limit_ms = slo.ttft_ms or next((target for target in targets if target is not None), None)
    cuts = {"warmup_s": warmup_s, "cooldown_s": cooldown_s}
    found = overload(records, limit_s=None if limit_ms is None else limit_ms / 1e3, **cuts)
    percentiles = run_percentiles(records, [key for key in COLUMNS if key in PERCENTILE_KEYS], **cuts)
    return Facts(found, () if slo is None else _misses(records, slo, warmup_s, cooldown_s), percentiles)


def _misses(records: Records, slo: Slo, warmup_s: float, cooldown_s: float) -> tuple[Miss, ...]:
    taken = measured_window(records, warmup_s, cooldown_s).measured & (records.requests.status != Status.REJECTED)
    found = []
    for class_name, requests, limits in limited_requests(records, slo):
        measured = requests & taken
        if not measured.any():
            continue
        classes = class_name if class_name is not None else classes_of(records, requests) or None
        for name, limit_ms in limits.items():
            took_ms = LATENCIES[name].of_request_s(records)[measured] * 1e3
            known = took_ms[np.isfinite(took_ms)]
            p99 = float(np.percentile(known, 99)) if len(known) else math.nan
            late = int((~(took_ms <= limit_ms)).sum())
            found.append(Miss(name, classes, limit_ms, late, int(measured.sum()), p99))
    return tuple(found)


def classes_of(records: Records, requests: Bools) -> str:
    """The classes of these requests (`a and b`); nothing where they are all."""
    found = set(records.requests.class_index[requests].tolist())
    names = [name for index, name in enumerate(records.class_names) if index in found]
    return "" if requests.all() or not names else joined(names)


@dataclass(frozen=True, slots=True)
class Judged:
    """A run against an SLO. `unsure`: it may be the other way round, as far as these seeds can tell."""

    outcomes: tuple[Outcome, ...]
    unsure: bool

    @property
    def keeps(self) -> bool:
        return bool(self.outcomes) and all(outcome.met for outcome in self.outcomes)

    @property
    def worst(self) -> float:
        """The share of its limit by which the worst target lies beyond it; negative where all are met."""
        return max((_severity(outcome) for outcome in self.outcomes), default=math.inf)

    @property
    def missed(self) -> tuple[Outcome, ...]:
        """The targets missed, the worst first."""
        missed = [outcome for outcome in self.outcomes if not outcome.met]
        return tuple(sorted(missed, key=lambda outcome: -_severity(outcome)))


def judged(runs: Sequence[Summary], slo: Slo | None) -> Judged:
    """A run, one summary a seed, against the targets of an SLO; one with limits of a request alone asks for 99 %."""
    if slo is None or not (slo.limits or slo.has_targets):
        return Judged((), unsure=False)
    if slo.has_targets and (found := mean_outcomes(runs)):
        seen = [[each.value for each in outcomes_of(run)] for run in runs]
        unsure = any(_straddles(same, each) for same, each in zip(zip(*seen, strict=True), found, strict=True))
        return Judged(found, unsure)
    share = values(runs, ATTAINMENT)
    mean = mean_interval(share).mean
    if math.isnan(mean):
        return Judged((), unsure=False)
    outcome = Outcome(ATTAINMENT, None, KEPT, mean, mean >= KEPT, KEPT - mean, (KEPT - mean) / KEPT)
    return Judged((outcome,), _straddles(share, outcome))


def _straddles(seen: Sequence[float | None], outcome: Outcome) -> bool:
    """Return whether the interval over seeds holds values on both sides of the limit."""
    found = mean_interval(seen)
    if found.n < 2:
        return False
    if METRICS[outcome.metric].better > 0:
        return found.low < outcome.limit <= found.high
    return found.low <= outcome.limit < found.high


def _severity(outcome: Outcome) -> float:
    if outcome.relative_excess is None:
        return -math.inf if outcome.met else math.inf
    return outcome.relative_excess


def slo_text(slo: Slo) -> str:
    """TTFT <= 1,000 ms and TPOT <= 50 ms, TTFT p99 <= 2,000 ms (batch: E2E <= 60,000 ms)."""
    limits = [f"{LATENCIES[name].title} <= {limit_ms:,g} ms" for name, limit_ms in slo.per_request().items()]
    targets = [f"{METRICS[key].title} <= {_limit_text(key, limit)}" for key, limit in slo.targets.items()]
    if slo.attainment is not None:
        targets.append(f"{100 * slo.attainment:g} % of the requests within their limits")
    text = ", ".join([*([joined(limits)] if limits else []), *targets])
    classes = "; ".join(f"{name}: {inner}" for name, each in slo.classes.items() if (inner := slo_text(each)))
    return " ".join(filter(None, (text, classes and f"({classes})")))


def how_text(found: Judged) -> str:
    """The value of the target that comes nearest to its limit."""
    tight = max(found.outcomes, key=_severity)
    if tight.value is None:
        return "no request to judge by"
    share = tight.metric == ATTAINMENT and tight.class_name is None
    return _value_text(ATTAINMENT, tight.value) if share else f"{_name(tight)} {_value_text(tight.metric, tight.value)}"


def missed_text(outcome: Outcome) -> str:
    """TTFT p99 of chat 1,240 ms, 24 % over 1,000 ms; 95.5 % of the requests within their limits, 3.5 points short."""
    limit = _limit_text(outcome.metric, outcome.limit)
    if outcome.value is None or outcome.excess is None or outcome.relative_excess is None:
        return f"{_name(outcome)} has no value, as no request finished"
    if outcome.metric == ATTAINMENT:
        noun = "requests" if outcome.class_name is None else f"{outcome.class_name} requests"
        within = _value_text(ATTAINMENT, outcome.value)
        return f"{within} of the {noun} within their limits, {100 * outcome.excess:.1f} points short of {limit}"
    ratio = 1 + outcome.relative_excess
    by = f"{ratio:.1f}x the limit of" if ratio >= 2 else f"{100 * outcome.relative_excess:.2g} % beyond"
    return f"{_name(outcome)} {_value_text(outcome.metric, outcome.value)}, {by} {limit}"


def misses_text(misses: Sequence[Miss], most: int = 2) -> list[str]:
    """The limits that most requests exceed: `TTFT over 1,000 ms in 78 of 1,515 requests (p99 3,101 ms)`."""
    found = []
    for miss in sorted((miss for miss in misses if miss.misses), key=lambda miss: -miss.misses)[:most]:
        noun = "requests" if miss.classes is None else f"{miss.classes} requests"
        tail = "" if math.isnan(miss.p99_ms) else f" (p99 {latency(miss.p99_ms)})"
        title = LATENCIES[miss.name].title
        found.append(f"{title} over {miss.limit_ms:,g} ms in {miss.misses:,} of {miss.requests:,} {noun}{tail}")
    return found


def _name(outcome: Outcome) -> str:
    of = f" of {outcome.class_name}" if outcome.class_name is not None else ""
    return f"{METRICS[outcome.metric].title}{of}"


def _value_text(key: str, value: float) -> str:
    unit = METRICS[key].unit
    if unit == FRACTION:
        return f"{100 * value:.1f} %"
    return latency(value) if unit == MS else f"{short(value)} {unit}".strip()


def _limit_text(key: str, limit: float) -> str:
    """A limit as the SLO states it."""
    unit = METRICS[key].unit
    return f"{100 * limit:g} %" if unit == FRACTION else f"{limit:,g} {unit}".strip()
