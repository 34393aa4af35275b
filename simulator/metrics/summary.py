"""Every metric, each defined once: reports and searches take them from here.

Names and definitions of the summary are those of vLLM's `bench serve`; percentiles are `numpy.percentile`, linear;
std is the population's. What is defined a request at a time is in `latency`, over steps in `usage`, of waiting in
`waiting`, and over time, for plots, in `series`.
"""

from __future__ import annotations

import math

import numpy as np

from simulator.metrics.latency import (
    RequestLatencies,
    Slo,
    e2el_s,
    finished,
    itl,
    meets_slo,
    queue_s,
    request_latencies,
    streamed,
    tpot_s,
    ttft_s,
)
from simulator.metrics.usage import Usage, usage
from simulator.metrics.waits import Starvation, saturated, starvation, waits
from simulator.metrics.weighted import Distribution
from simulator.metrics.window import Bools, Window, measured_window
from simulator.results.records import Floats, Records, Status

__all__ = [
    "RequestLatencies",
    "Slo",
    "Starvation",
    "Summary",
    "cost_per_million_output_tokens",
    "e2el_s",
    "finished",
    "itl",
    "meets_slo",
    "queue_s",
    "request_latencies",
    "starvation",
    "streamed",
    "summarize",
    "summarize_by_class",
    "tpot_s",
    "ttft_s",
]

SCHEMA_VERSION = 1
PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES))

Value = float | int | bool | None
Summary = dict[str, Value]


def cost_per_million_output_tokens(
    output_throughput: float | None, *, gpus: int, usd_per_gpu_hour: float
) -> float | None:
    """gpus x USD per GPU-hour / (output_throughput x 3600) x 1e6; None without a throughput."""
    if not output_throughput:
        return None
    return gpus * usd_per_gpu_hour / (output_throughput * 3600) * 1e6


def summarize(records: Records, *, slo: Slo | None = None, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Summary:
    """The metrics of a run under the names of summary.json, in its order. None stands for what is undefined.

    The measured requests are those that do not arrive in the first `warmup_s` or the last `cooldown_s` seconds of
    the arrivals; the window lasts from their first arrival to their last token (`Window`). Counts of requests, their
    tokens, latencies and preemptions are of measured requests, throughputs those counts over the window's length;
    latencies and tokens are of finished ones. Steps, time-weighted means and the queue are of everything that
    happened in the window, whoever it was for; so are the gaps between tokens (`itl`).

    Without `slo`, or with one that sets no limit, `request_goodput` and `slo_attainment` are None.
    """
    window = measured_window(records, warmup_s, cooldown_s)
    waiting = waits(records)
    used = usage(records, window)
    summary = _served(records, slo, window.measured, window)
    summary |= _latencies(records, window.measured, itl(records, PERCENTILES, window))
    summary |= _usage(used)
    summary["queue_depth_mean"] = _defined(waiting.mean_depth(window.start_s, window.end_s))
    summary["queue_depth_max"] = waiting.max_depth(window.start_s, window.end_s)
    summary |= _losses(records, window.measured)
    summary["slo_attainment"] = _attainment(records, slo, window.measured)
    summary["saturated"] = saturated(records, window, waiting)
    summary["schema_version"] = SCHEMA_VERSION
    return summary


def summarize_by_class(
    records: Records, *, slo: Slo | None = None, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> dict[str, Summary]:
    """For each class with a measured request, in the order of `class_names`: what `summarize` says of requests.

    The same names and definitions; throughputs are over the window of all classes, so that they add up. Of `itl`
    there is only the mean, (tn - t1) / (n - 1) weighted by n - 1. Besides, of all requests of the class:
    `longest_queue_time_ms`, `longest_requeue_time_ms`, `most_preemptions` of one request, and `queue_depth_mean`.
    """
    window = measured_window(records, warmup_s, cooldown_s)
    summaries: dict[str, Summary] = {}
    for index, name in enumerate(records.class_names):
        of_class = records.requests.class_index == index
        measured = of_class & window.measured
        if not measured.any():
            continue
        summary = _served(records, slo, measured, window)
        summary |= _latencies(records, measured, None)
        summary["mean_itl_ms"] = _mean_itl_ms(records, measured)
        for statistic in STATISTICS[1:]:
            del summary[f"{statistic}_itl_ms"]
        waiting = waits(records, of_class)
        summary["queue_depth_mean"] = _defined(waiting.mean_depth(window.start_s, window.end_s))
        summary |= _losses(records, measured)
        summary["slo_attainment"] = _attainment(records, slo, measured)
        worst = starvation(records, of_class)
        summary["longest_queue_time_ms"] = worst.longest_queue_s * 1e3
        summary["longest_requeue_time_ms"] = worst.longest_requeue_s * 1e3
        summary["most_preemptions"] = worst.most_preemptions
        summaries[name] = summary
    return summaries


def _served(records: Records, slo: Slo | None, measured: Bools, window: Window) -> Summary:
    done = measured & finished(records)
    completed = int(done.sum())
    inputs = int(records.requests.input_tokens[done].sum())
    outputs = int(records.requests.output_tokens[done].sum())
    good = None if slo is None or not slo.limits else int((meets_slo(records, slo) & measured).sum())
    seconds = window.duration_s
    return {
        "completed": completed,
        "duration": seconds,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": _rate(completed, seconds),
        "output_throughput": _rate(outputs, seconds),
        "total_token_throughput": _rate(inputs + outputs, seconds),
        "request_goodput": None if good is None else _rate(good, seconds),
    }


def _latencies(records: Records, measured: Bools, gaps: Distribution | None) -> Summary:
    done = measured & finished(records)
    summary: Summary = {}
    summary |= _statistics("ttft_ms", _describe(ttft_s(records)[done]))
    summary |= _statistics("tpot_ms", _describe(tpot_s(records)[done]))
    summary |= _statistics("itl_ms", gaps)
    summary |= _statistics("e2el_ms", _describe(e2el_s(records)[done]))
    summary |= _statistics("queue_time_ms", _describe(queue_s(records)[done]))
    return summary


def _describe(seconds: Floats) -> Distribution | None:
    known = seconds[~np.isnan(seconds)]
    if not len(known):
        return None
    percentiles = tuple(np.percentile(known, PERCENTILES).tolist())
    return Distribution(len(known), float(known.mean()), float(known.std()), percentiles)


def _statistics(name: str, found: Distribution | None) -> Summary:
    if found is None:
        return {f"{statistic}_{name}": None for statistic in STATISTICS}
    seconds = (found.mean, found.percentiles[0], found.std, *found.percentiles)
    return {f"{statistic}_{name}": value * 1e3 for statistic, value in zip(STATISTICS, seconds, strict=True)}


def _mean_itl_ms(records: Records, measured: Bools) -> float | None:
    requests, those = records.requests, measured & streamed(records)
    gaps = int((requests.output_tokens[those] - 1).sum())
    return float((requests.last_token_s[those] - requests.first_token_s[those]).sum()) / gaps * 1e3 if gaps else None


def _usage(used: Usage) -> Summary:
    names = (
        "mean_batch_size",
        "batch_occupancy",
        "busy_fraction",
        "wasted_slot_fraction",
        "padding_fraction",
        "kv_utilization_mean",
        "kv_utilization_peak",
    )
    return {"num_steps": used.num_steps} | {name: _defined(getattr(used, name)) for name in names}


def _losses(records: Records, measured: Bools) -> Summary:
    requests = records.requests
    return {
        "preemptions": int(requests.preemptions[measured].sum()),
        "recomputed_tokens": int(requests.recomputed_tokens[measured].sum()),
        "swapped_out_blocks": int(requests.swapped_out_blocks[measured].sum()),
        "swapped_in_blocks": int(requests.swapped_in_blocks[measured].sum()),
        "prefix_cache_hit_rate": _prefix_cache_hit_rate(records, measured),
        "rejected": int((requests.status[measured] == Status.REJECTED).sum()),
        "unfinished": int((requests.status[measured] == Status.UNFINISHED).sum()),
    }


def _prefix_cache_hit_rate(records: Records, measured: Bools) -> float | None:
    """Prompt tokens found in the cache / prompt tokens asked for, at first admissions and recomputing ones."""
    requests, requeues = records.requests, records.requeues
    asked = (~np.isnan(requests.scheduled_s)).astype(np.int64)
    recomputing = ~np.isnan(requeues.to_s) & (requeues.swapped == 0)
    asked += np.bincount(requeues.row[recomputing], minlength=len(asked))
    tokens = int(np.dot(asked[measured], requests.input_tokens[measured]))
    return float(requests.cached_tokens[measured].sum()) / tokens if tokens else None


def _attainment(records: Records, slo: Slo | None, measured: Bools) -> float | None:
    """Share of the measured requests that meet every limit: what is rejected or unfinished does not."""
    if slo is None or not slo.limits or not measured.any():
        return None
    return float(meets_slo(records, slo)[measured].mean())


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value
