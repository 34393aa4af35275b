"""The summary of a run, and of each of its classes: the values of `table.METRICS`."""

from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import Value
from simulator.metrics.slo import Slo
from simulator.metrics.table import METRICS
from simulator.metrics.usage import check_rows
from simulator.metrics.window import measured_window
from simulator.results.records import Records

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
