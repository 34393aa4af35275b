"""The metrics of the verdict: which it shows and how, their means over seeds, and whether a difference is real."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reports.units import decimals
from simulator.metrics.confidence import metric_difference, metric_interval
from simulator.metrics.metric import FLAG, FRACTION, REQUESTS, Metric
from simulator.metrics.summary import METRICS, OWN, PREDICTED, PREDICTION

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
