"""The summary of a run: every metric of summary.json in its order, their values, and metrics of the user's own.

`METRICS` is the one place that says what each is called, means and is made of.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from simulator.errors import InputError
from simulator.metrics.latency import LATENCIES, Slo
from simulator.metrics.metric import FLAG, FRACTION, MS, PERCENTILES, REQUESTS, Metric, Sample, Value
from simulator.metrics.part_metrics import (
    ADAPTER_METRICS,
    COPY_METRICS,
    DRAFT_METRICS,
    ENERGY_METRICS,
    FORESIGHT_METRICS,
    GATEWAY_METRICS,
    REGRET_METRICS,
    TASK_METRICS,
)
from simulator.metrics.usage import check_rows, jain, least_over_most, most_over_mean, variation
from simulator.metrics.waits import saturated
from simulator.metrics.window import Bools, measured_window
from simulator.parameters import split_class, users_object
from simulator.results.records import Floats, Records, Status, TransferColumns

# Names and definitions are those of vLLM's `bench serve`; percentiles are `numpy.percentile`, linear; std is the
# population's. A new metric is an entry here, next to those that it is read with.

SCHEMA_VERSION = 1
STATISTICS = ("mean", "median", "std", *(f"p{p}" for p in PERCENTILES))


def _latencies() -> Iterator[Metric]:
    """The statistics of each latency. Of `itl`, a class has the mean alone."""
    for name, latency in LATENCIES.items():
        for index, statistic in enumerate(STATISTICS):
            yield Metric(
                f"{statistic}_{name}_ms",
                f"{latency.title} {statistic}",
                MS,
                f"{statistic} of {latency.definition}",
                _mean_itl_ms if (statistic, name) == ("mean", "itl") else _statistic_ms(name, index),
                better=-1,
                by_class=name != "itl" or statistic == "mean",
            )


def _statistic_ms(name: str, index: int) -> Callable[[Sample], float | None]:
    def of(sample: Sample) -> float | None:
        found = sample.latency(name)
        if found is None:
            return None
        return (found.mean, found.percentiles[0], found.std, *found.percentiles)[index] * 1e3

    return of


def _mean_itl_ms(sample: Sample) -> float | None:
    return None if sample.mean_itl_s is None else sample.mean_itl_s * 1e3


def _request_goodput(sample: Sample) -> float | None:
    return None if sample.good is None else sample.rate(int(sample.good.sum()))


def _slo_attainment(sample: Sample) -> float | None:
    return None if sample.good is None or not len(sample.good) else float(sample.good.mean())


def _prefix_cache_hit_rate(sample: Sample) -> float | None:
    """Prompt tokens are asked for at first admissions and at those that compute a preempted request again."""
    requests, requeues, measured = sample.records.requests, sample.records.requeues, sample.measured
    asked = (~np.isnan(requests.scheduled_s)).astype(np.int64)
    recomputing = ~np.isnan(requeues.to_s) & (requeues.swapped == 0)
    asked += np.bincount(requeues.row[recomputing], minlength=len(asked))
    tokens = int(np.dot(asked[measured], requests.input_tokens[measured]))
    return float(requests.cached_tokens[measured].sum()) / tokens if tokens else None


def _sum(column: str) -> Callable[[Sample], int]:
    """The sum of a column of the requests, over the measured ones."""
    return lambda s: int(getattr(s.records.requests, column)[s.measured].sum())


def _count(status: Status) -> Callable[[Sample], int]:
    return lambda s: int((s.records.requests.status[s.measured] == status).sum())


def _of_clients(name: str) -> Callable[[Sample], float | None]:
    """A metric of requests over all their attempts."""
    return lambda s: None if s.served is None else getattr(s.served, name)


def _of_sessions(name: str) -> Callable[[Sample], float | None]:
    """A metric of conversations."""
    return lambda s: None if s.sessions is None else _defined(getattr(s.sessions, name))


def _of_changes(name: str) -> Callable[[Sample], float | None]:
    """A metric of a changing number of replicas."""
    return lambda s: None if s.changes is None else _defined(getattr(s.changes, name))


def _of_transfers(of: Callable[[TransferColumns, Bools], float]) -> Callable[[Sample], float | None]:
    """A metric of the KV that moved, of measured requests."""

    def value(sample: Sample) -> float | None:
        moved = sample.records.transfers
        return None if moved is None else _defined(of(moved, sample.measured[moved.row]))

    return value


def _mean(seconds: Floats) -> float:
    return float(seconds.mean()) if len(seconds) else math.nan


def _defined(value: float) -> float | None:
    return None if math.isnan(value) else value


_TABLE = (
    Metric(
        "completed", "completed", REQUESTS, "requests with all their tokens", lambda s: s.completed,
        better=1, by_class=True,
    ),
    Metric(
        "duration", "duration", "s", "first arrival to last token, or last abort, of the measured requests",
        lambda s: s.window.duration_s, by_class=True,
    ),
    Metric(
        "total_input_tokens", "input", "tokens", "prompt tokens of the completed requests",
        lambda s: s.input_tokens, by_class=True,
    ),
    Metric(
        "total_output_tokens", "output tokens", "tokens", "generated tokens of the completed requests",
        lambda s: s.output_tokens, by_class=True,
    ),
    Metric(
        "request_throughput", "throughput", "req/s", "completed / duration", lambda s: s.rate(s.completed),
        better=1, by_class=True,
    ),
    Metric(
        "output_throughput", "output", "tok/s", "output tokens / duration", lambda s: s.rate(s.output_tokens),
        better=1, by_class=True,
    ),
    Metric(
        "total_token_throughput", "all tokens", "tok/s", "(input + output tokens) / duration",
        lambda s: s.rate(s.input_tokens + s.output_tokens), better=1, by_class=True,
    ),
    Metric(
        "request_goodput", "goodput", "req/s", "requests that meet every limit of the SLO / duration",
        _request_goodput, better=1, by_class=True,
    ),
    *_latencies(),
    Metric("num_steps", "steps", "", "engine steps", lambda s: s.usage.num_steps),
    Metric(
        "mean_batch_size", "batch", REQUESTS, "requests computing in a step, mean over steps",
        lambda s: _defined(s.usage.mean_batch_size),
    ),
    Metric(
        "batch_occupancy", "batch full", FRACTION, "running requests / max_num_seqs, mean over time",
        lambda s: _defined(s.usage.batch_occupancy),
    ),
    Metric(
        "busy_fraction", "busy", FRACTION, "time with a step in flight / duration",
        lambda s: _defined(s.usage.busy_fraction),
    ),
    Metric(
        "wasted_slot_fraction", "wasted slots", FRACTION, "slot-steps held by finished requests / all slot-steps",
        lambda s: _defined(s.usage.wasted_slot_fraction), better=-1, remark="what static batching wastes",
    ),
    Metric(
        "padding_fraction", "padding", FRACTION, "padded / computed tokens",
        lambda s: _defined(s.usage.padding_fraction), better=-1,
    ),
    Metric(
        "kv_utilization_mean", "KV mean", FRACTION, "used / usable KV blocks, mean over time",
        lambda s: _defined(s.usage.kv_utilization_mean),
    ),
    Metric(
        "kv_utilization_peak", "KV peak", FRACTION, "used / usable KV blocks, at the fullest moment",
        lambda s: _defined(s.usage.kv_utilization_peak), remark="of the fullest replica",
    ),
    Metric(
        "queue_depth_mean", "queue", REQUESTS, "waiting requests, mean over time",
        lambda s: _defined(s.waits.mean_depth(s.window.start_s, s.window.end_s)), better=-1, by_class=True,
    ),
    Metric(
        "queue_depth_max", "longest queue", REQUESTS, "waiting requests, at the worst moment",
        lambda s: s.waits.max_depth(s.window.start_s, s.window.end_s), better=-1,
    ),
    Metric(
        "preemptions", "preemptions", "", "times that a running request lost its place", _sum("preemptions"),
        better=-1, remark="its KV is thrown away, moved to the host, or kept", by_class=True,
    ),
    Metric(
        "recomputed_tokens", "recomputed", "tokens", "tokens computed again after preemptions",
        _sum("recomputed_tokens"), better=-1, by_class=True,
    ),
    Metric(
        "swapped_out_blocks", "swapped out", "blocks", "KV blocks moved to the host", _sum("swapped_out_blocks"),
        better=-1, by_class=True,
    ),
    Metric(
        "swapped_in_blocks", "swapped in", "blocks", "KV blocks moved back from the host", _sum("swapped_in_blocks"),
        better=-1, by_class=True,
    ),
    Metric(
        "prefix_cache_hit_rate", "prefix hits", FRACTION, "prompt tokens found in the prefix cache / tokens looked up",
        _prefix_cache_hit_rate, better=1, by_class=True,
    ),
    Metric(
        "rejected", "rejected", REQUESTS, "requests refused on arrival: they could never fit, or the queue was full",
        _count(Status.REJECTED), better=-1, by_class=True,
    ),
    Metric(
        "unfinished", "unfinished", REQUESTS, "requests without all their tokens at the end of the run",
        _count(Status.UNFINISHED), better=-1, by_class=True,
    ),
    Metric(
        "aborted", "aborted", REQUESTS, "requests whose client gave up before their last token",
        _count(Status.ABORTED), better=-1, by_class=True,
    ),
    Metric(
        "aborted_output_tokens", "aborted output", "tokens", "generated tokens of the aborted requests",
        lambda s: int(s.records.requests.output_tokens[s.aborted].sum()), better=-1,
        remark="those in execution when the engine noticed are dropped, and not counted", by_class=True,
    ),
    Metric(
        "aborted_computed_tokens", "wasted", "tokens", "prompt and output tokens computed for the aborted requests",
        _sum("aborted_tokens"), better=-1, by_class=True,
    ),
    Metric(
        "slo_attainment", "within SLO", FRACTION, "requests that meet every limit of the SLO / all requests",
        _slo_attainment, better=1, remark="rejected, unfinished and aborted requests count as misses", by_class=True,
    ),
    Metric(
        "balance_cv", "token imbalance", "",
        "standard deviation / mean, over replicas, of the tokens served (input and output of completed requests)",
        lambda s: variation(s.served_by_replica), better=-1, remark="0 where all replicas serve the same",
    ),
    Metric(
        "balance_max_over_mean", "fullest replica", "", "most / mean, over replicas, of the tokens served",
        lambda s: most_over_mean(s.served_by_replica), better=-1,
    ),
    Metric(
        "balance_jain", "replicas' Jain index", FRACTION, "Jain's index of the tokens served by each replica",
        lambda s: jain(s.served_by_replica), better=1,
    ),
    Metric(
        "least_busy_fraction", "least busy", FRACTION, "busy_fraction of the replica where it is least",
        lambda s: float(s.busy_by_replica.min()) if len(s.busy_by_replica) else None,
        remark="where there are several replicas",
    ),
    Metric(
        "most_busy_fraction", "most busy", FRACTION, "busy_fraction of the replica where it is most",
        lambda s: float(s.busy_by_replica.max()) if len(s.busy_by_replica) else None,
    ),
    Metric(
        "fairness_jain", "classes' Jain index", FRACTION, "Jain's index of the tokens served to each class",
        lambda s: jain(s.served_by_class), better=1, remark="1 where all classes are served the same",
    ),
    Metric(
        "fairness_min_over_max", "least served class", FRACTION, "least / most tokens served to a class",
        lambda s: least_over_most(s.served_by_class), better=1,
    ),
    Metric(
        "served", "served", REQUESTS, "requests of which an attempt was completed, each counted once",
        _of_clients("served"), better=1, remark="where clients have timeouts or retries", by_class=True,
    ),
    Metric(
        "given_up", "given up", REQUESTS, "requests of which no attempt was completed, and none is to come",
        _of_clients("given_up"), better=-1, by_class=True,
    ),
    Metric(
        "attempts_per_request", "attempts", "", "attempts / requests", _of_clients("attempts_per_request"),
        better=-1, by_class=True,
    ),
    Metric(
        "served_throughput", "served rate", "req/s", "requests served / duration",
        lambda s: s.rate(None if s.served is None else s.served.served), better=1, by_class=True,
    ),
    Metric(
        "sessions", "sessions", "", "conversations with a measured request", _of_sessions("sessions"), by_class=True,
    ),
    Metric(
        "mean_session_turns", "turns", REQUESTS, "completed requests of a session, mean over sessions",
        _of_sessions("mean_turns"), by_class=True,
    ),
    Metric(
        "mean_session_s", "session", "s", "a session's first arrival to its last token, mean over sessions",
        _of_sessions("mean_duration_s"), by_class=True,
    ),
    Metric(
        "sessions_jain", "sessions' Jain index", FRACTION, "Jain's index of the mean E2E of each session",
        _of_sessions("jain"), better=1, remark="1 where the users of all sessions wait equally long", by_class=True,
    ),
    Metric(
        "replica_seconds", "replica time", "s", "time that replicas were there, starting and draining ones included",
        lambda s: s.replica_seconds, better=-1,
    ),
    Metric(
        "mean_replicas", "replicas", "", "replica_seconds / duration",
        lambda s: s.replica_seconds / s.window.duration_s if s.window.duration_s > 0 else None, better=-1,
    ),
    Metric(
        "peak_replicas", "most replicas", "", "replicas at the same time, at most", _of_changes("peak"),
        remark="where the number changes",
    ),
    Metric("scale_outs", "scaled out", "", "replicas started by the autoscaler", _of_changes("scale_outs")),
    Metric("scale_ins", "scaled in", "", "replicas that the autoscaler let drain", _of_changes("scale_ins")),
    Metric(
        "mean_time_to_scale_s", "time to scale", "s", "from the decision to a replica that takes requests, mean",
        _of_changes("time_to_scale_s"), better=-1,
    ),
    Metric(
        "mean_drain_s", "drain", "s", "from the decision to an empty replica, mean", _of_changes("drain_s"), better=-1,
    ),
    Metric(
        "kv_transfers", "KV moved", REQUESTS, "requests whose KV moved from a prefilling to a decoding replica",
        _of_transfers(lambda moved, own: int(own.sum())), remark="where prefill and decode are apart",
    ),
    Metric(
        "kv_transfer_gib", "KV moved", "GiB", "size of that KV",
        _of_transfers(lambda moved, own: float(moved.bytes[own].sum()) / 2**30),
    ),
    Metric(
        "mean_kv_wait_s", "KV waits", "s", "from the first token until the transfer begins, mean",
        _of_transfers(lambda moved, own: _mean((moved.start_s - moved.ready_s)[own])), better=-1,
        remark="for blocks on the decoding replica, then for the link",
    ),
    Metric(
        "mean_kv_transfer_s", "KV transfer", "s", "from the begin of a transfer to its end, mean",
        _of_transfers(lambda moved, own: _mean((moved.end_s - moved.start_s)[own])), better=-1,
    ),
    *DRAFT_METRICS,
    *COPY_METRICS,
    *ADAPTER_METRICS,
    *REGRET_METRICS,
    *TASK_METRICS,
    *GATEWAY_METRICS,
    Metric(
        "saturated", "saturated", FLAG, "the queue grew as long as requests came",
        lambda s: saturated(s.records, s.window, s.waits), better=-1,
        remark="such a run has no steady state to take means of",
    ),
    Metric(
        "schema_version", "schema version", "", "the version of summary.json's keys", lambda s: SCHEMA_VERSION
    ),
    Metric(
        "gpu_hours", "GPU time", "GPU-h", "replica_seconds x GPUs of a replica / 3600, over all groups", None,
        better=-1,
    ),
    Metric(
        "usd_per_million_output_tokens", "cost", "USD/M tok",
        "GPU-hours x USD per GPU-hour / output tokens x 1,000,000", None, better=-1,
    ),
    *FORESIGHT_METRICS,
    *ENERGY_METRICS,
    Metric(
        "longest_queue_time_ms", "longest wait", MS, "the longest that a request waited to be scheduled first",
        lambda s: s.starvation.longest_queue_s * 1e3, better=-1, by_run=False, by_class=True,
    ),
    Metric(
        "longest_requeue_time_ms", "longest wait again", MS, "the longest single wait after a preemption",
        lambda s: s.starvation.longest_requeue_s * 1e3, better=-1, by_run=False, by_class=True,
    ),
    Metric(
        "most_preemptions", "most preemptions", "", "the most preemptions of one request",
        lambda s: s.starvation.most_preemptions, better=-1, by_run=False, by_class=True,
    ),
)  # fmt: skip

METRICS: Mapping[str, Metric] = {metric.key: metric for metric in _TABLE}
"""By key, in the order of summary.json; what only a class has comes last."""


# The summary of a run, and of each of its classes: the values of `table.METRICS`.

Summary = dict[str, Value]


def summarize(records: Records, *, slo: Slo | None = None, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Summary:
    """The metrics of a run under the names of summary.json, in its order. None stands for what is undefined.

    The measured requests are those that do not arrive in the first `warmup_s` or the last `cooldown_s` seconds of
    the arrivals; the window lasts from their first arrival to their last token (`Window`). Counts of requests, their
    tokens, latencies and preemptions are of measured requests, throughputs those counts over the window's length;
    latencies and tokens are of finished ones. Steps, time-weighted means, the queue and the gaps between tokens
    (`itl`) are of everything that happened in the window, whichever request it was for.

    Without `slo`, or with one that sets no limit, `request_goodput` and `slo_attainment` are None. Raises InputError
    for cuts that leave no request, ValueError for rows that do not cover the steps.
    """
    check_rows(records)
    sample = Sample(records, measured_window(records, warmup_s, cooldown_s), slo)
    chosen = [metric for metric in METRICS.values() if metric.by_run and metric.of is not None]
    found = {metric.key: metric.of(sample) for metric in chosen if metric.of is not None}
    return {key: value for key, value in found.items() if value is not None or not METRICS[key].is_rare}


def summarize_by_class(
    records: Records, *, slo: Slo | None = None, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> dict[str, Summary]:
    """For each class with a measured request, in the order of `class_names`: what `summarize` says of requests.

    The same names and definitions; throughputs are over the window of all classes, so that they add up. Of `itl`
    there is only the mean, (tn - t1) / (n - 1) weighted by n - 1. Besides, of all requests of the class:
    `longest_queue_time_ms`, `longest_requeue_time_ms`, `most_preemptions` of one request, and `queue_depth_mean`.
    """
    window = measured_window(records, warmup_s, cooldown_s)
    chosen = [metric for metric in METRICS.values() if metric.by_class]
    summaries: dict[str, Summary] = {}
    for index, name in enumerate(records.class_names):
        sample = Sample(records, window, slo, index)
        if sample.measured.any():
            values = {metric.key: metric.of(sample) for metric in chosen if metric.of is not None}
            summaries[name] = {
                key: value for key, value in values.items() if not (value is None and METRICS[key].is_rare)
            }
    return summaries


def cost_per_million_output_tokens(
    output_throughput: float | None, *, gpus: int, usd_per_gpu_hour: float
) -> float | None:
    """gpus x USD per GPU-hour / (output_throughput x 3600) x 1e6; None without a throughput."""
    if not output_throughput:
        return None
    return gpus * usd_per_gpu_hour / (output_throughput * 3600) * 1e6


# Metrics of the user's own: `path.py:NAME`, a `Metric` in a file anywhere.

OWN = "own_metrics"
"""The key of summary.json that describes them: title, unit, definition, better."""


def load_metric(name: str) -> Metric:
    """Load the metric that `path.py:NAME` names. Raises InputError where there is none, or its key is taken.

    Its `of` raises InputError, with the user's file, where it fails or gives no number.
    """
    metric: Metric = users_object("metric", name, Metric)
    path, _ = split_class(name)
    if metric.key in METRICS or not metric.key.isidentifier() or metric.key == OWN:
        what = f"the key {metric.key!r} is taken, or no word of letters, digits and _"
        raise InputError(what, file=path, hint="summary.json has the metrics of batchlab under their own keys")
    if metric.of is None:
        raise InputError(f"{metric.key} has no `of`, which works it out", file=path)
    return replace(metric, of=partial(_worked_out, metric, path))


def _worked_out(metric: Metric, path: str, sample: Sample) -> Value:
    assert metric.of is not None  # as load_metric says
    try:
        value = metric.of(sample)
    except Exception as error:  # whatever the user's function raises is the user's to mend
        raise InputError(f"{metric.key} fails: {type(error).__name__}: {error}", file=path) from error
    if value is not None and not (hasattr(value, "__float__") and math.isfinite(value)):
        raise InputError(f"{metric.key} gives {value!r}", file=path, hint="a finite number, or None if undefined")
    return value if value is None or isinstance(value, (bool, int)) else float(value)


def own_entries(
    names: Sequence[str], records: Records, slo: Slo | None, *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> dict[str, Any]:
    """Return the entries of summary.json for these metrics: a value for each key, and what each of them is.

    Raises InputError, with the user's file, for a metric that fails or gives no number.
    """
    if not names:
        return {}
    sample = Sample(records, measured_window(records, warmup_s, cooldown_s), slo)
    values: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for name in names:
        metric, (path, _) = load_metric(name), split_class(name)
        if metric.key in values:
            raise InputError(f"a second metric has the key {metric.key!r}", file=path)
        assert metric.of is not None  # as load_metric says
        values[metric.key] = metric.of(sample)
        told = {"title": metric.title, "unit": metric.unit, "definition": metric.definition, "better": metric.better}
        about[metric.key] = told
    return {**values, OWN: about}


# The entry `prediction` of summary.json: its key, and the metrics that have an interval in it, in order.

PREDICTION = "prediction"
TTFT, TPOT, E2E = "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms"
THROUGHPUT, PRICE = "request_throughput", "usd_per_million_output_tokens"
PREDICTED = (TTFT, TPOT, E2E, THROUGHPUT, PRICE)
