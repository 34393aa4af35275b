"""A snapshot at the end of the run in Prometheus' text format, by vLLM's names (`simulator.metrics.vllm_metrics`).

What `batchlab serve` shows as it goes, once, of a finished run: no sample tells when it was made. The adapters in use
are left out: a finished run uses none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reports.exports.exported_run import Exported, ExportFormat
from simulator.metrics import vllm_metrics as names
from simulator.metrics.latency import token_times_s
from simulator.results.records import Cause, Floats, Ints, Status

FILE = "metrics.prom"


def _write(run: Exported, folder: Path) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Families(run))
    (folder / FILE).write_bytes(generate_latest(registry))


class _Families:
    """The collector that gives prometheus_client the families."""

    def __init__(self, run: Exported) -> None:
        self._run = run

    def collect(self) -> Iterator[Any]:
        """Yield all families, each with a sample a replica."""
        yield from _gauges(self._run)
        yield from _counters(self._run)
        yield from _histograms(self._run)


def _gauges(run: Exported) -> Iterator[Any]:
    """The gauges at the end of the run, when unfinished requests still run or wait."""
    from prometheus_client.core import GaugeMetricFamily

    for (name, told), of in zip(names.GAUGES.items(), _at_end(run), strict=True):
        family = GaugeMetricFamily(names.PREFIX + name, told, labels=names.LABELS)
        for replica in range(run.records.replicas):
            family.add_metric([run.model, str(replica)], float(of[replica]))
        yield family
    name, told = names.CONFIG
    family = GaugeMetricFamily(names.PREFIX + name, told, labels=names.CONFIG_LABELS)
    for replica, group in enumerate(each for each in run.records.sizes for _ in range(each.replicas)):
        about = [str(group.block_size), str(group.num_blocks + 1), str(run.prefix_caching)]  # vLLM counts a null block
        family.add_metric([run.model, str(replica), *about], 1)
    yield family


def _at_end(run: Exported) -> tuple[Ints, Ints, Floats]:
    """For each replica, the requests that run and wait, and the share of its blocks in use."""
    records, rows = run.records, run.records.rows
    open_ = records.requests.status == Status.UNFINISHED
    running, waiting = np.zeros(records.replicas, np.int64), np.zeros(records.replicas, np.int64)
    kv = np.zeros(records.replicas)
    blocks = [group.num_blocks for group in records.sizes for _ in range(group.replicas)]
    for replica in np.unique(records.requests.replica[open_]).tolist():
        mine = np.flatnonzero(rows.replica == replica)
        if replica < 0 or not len(mine):
            continue
        last = int(mine[-1])
        running[replica], waiting[replica] = rows.running[last], rows.waiting[last]
        kv[replica] = records.step_used_blocks[rows.first_step[last] + rows.repeat[last] - 1] / blocks[replica]
    return running, waiting, kv


def _counters(run: Exported) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily

    records, requests = run.records, run.records.requests
    served = requests.replica >= 0
    done = requests.status == Status.FINISHED
    inputs = np.where(done, requests.input_tokens, 0)
    counted = {
        "prompt_tokens": inputs,
        "generation_tokens": requests.output_tokens,
        "num_preemptions": requests.preemptions,
        "prefix_cache_queries": inputs if run.prefix_caching else np.zeros_like(inputs),
        "prefix_cache_hits": requests.cached_tokens,
    }
    for name, told in names.COUNTERS.items():
        family = CounterMetricFamily(names.PREFIX + name, told, labels=names.LABELS)
        sums = np.bincount(requests.replica[served], counted[name][served], records.replicas)
        for replica, value in enumerate(sums.tolist()):
            family.add_metric([run.model, str(replica)], value)
        yield family
    yield from _drafts(run)
    name, told = names.SUCCESS
    family = CounterMetricFamily(names.PREFIX + name, told, labels=(*names.LABELS, "finished_reason"))
    capped = requests.output_tokens >= requests.max_tokens
    reasons = (done & ~capped, done & capped, ~done & (requests.status != Status.REJECTED))
    for reason, which in zip(names.REASONS, reasons, strict=True):
        for replica, count in enumerate(np.bincount(requests.replica[served & which], minlength=records.replicas)):
            family.add_metric([run.model, str(replica), reason], float(count))
    yield family
    name, told = names.REJECTIONS
    family = CounterMetricFamily(names.PREFIX + name, told, labels=("model_name", "reason"))
    for cause, label in names.QUEUE_LIMITS.items():
        full = sum(reason.startswith(f"{cause.value}:") for reason in records.reject_reasons.values())
        if full or cause is Cause.QUEUE_FULL:
            family.add_metric([run.model, label], float(full))
    yield family


def _drafts(run: Exported) -> Iterator[Any]:
    """Counters of verified and accepted drafts; none where nothing was drafted."""
    from prometheus_client.core import CounterMetricFamily

    records, drafts = run.records, run.records.drafts
    if drafts is None:
        return
    of = records.requests.replica[drafts.row]
    counted = (drafts.steps, drafts.steps * drafts.drafts, drafts.steps * drafts.accepted)
    for (name, told), counts in zip(names.DRAFT_COUNTERS.items(), counted, strict=True):
        family = CounterMetricFamily(names.PREFIX + name, told, labels=names.LABELS)
        for replica, value in enumerate(np.bincount(of, counts, records.replicas).tolist()):
            family.add_metric([run.model, str(replica)], value)
        yield family
    name, told = names.DRAFTS_BY_POSITION
    family = CounterMetricFamily(names.PREFIX + name, told, labels=(*names.LABELS, "position"))
    for position in range(int(drafts.drafts.max())):
        kept = np.bincount(of, drafts.steps * (drafts.accepted > position), records.replicas)
        for replica, value in enumerate(kept.tolist()):
            family.add_metric([run.model, str(replica), str(position)], value)
    yield family


def _histograms(run: Exported) -> Iterator[Any]:
    from prometheus_client.core import HistogramMetricFamily

    replicas = run.records.replicas
    for name, (values, replica) in _observed(run).items():
        family = HistogramMetricFamily(names.PREFIX + name, names.help_of(name), labels=names.LABELS)
        bounds = [float(bound) for bound in names.buckets(name, run.max_model_len)]
        for engine in range(replicas):
            mine = values[replica == engine]
            counts = np.bincount(np.searchsorted(bounds, mine), minlength=len(bounds) + 1)
            below = np.cumsum(counts).tolist()
            labels = [*map(repr, bounds), "+Inf"]
            pairs = [(bound, float(count)) for bound, count in zip(labels, below, strict=True)]
            family.add_metric([run.model, str(engine)], pairs, float(mine.sum()))
        yield family


def _observed(run: Exported) -> dict[str, tuple[Floats | Ints, Ints]]:
    """By histogram, what was observed and on which replica."""
    requests, engine = run.records.requests, run.at_engine.requests
    done = np.flatnonzero(requests.status == Status.FINISHED)
    first = np.flatnonzero(~np.isnan(requests.first_token_s) & (requests.replica >= 0))
    all_ = np.flatnonzero(requests.replica >= 0)
    several = done[requests.output_tokens[done] > 1]
    decode_s = engine.last_token_s - engine.first_token_s
    tpot_s = decode_s[several] / (requests.output_tokens[several] - 1)
    gaps = [(np.diff(times), row) for row, times in token_times_s(run.records)]
    gap_s = np.concatenate([gap for gap, _ in gaps]) if gaps else np.zeros(0)
    gap_row = np.repeat([row for _, row in gaps], [len(gap) for gap, _ in gaps]).astype(np.int64)
    of = requests.replica
    return {
        "time_to_first_token_seconds": ((requests.first_token_s - requests.arrival_s)[first], of[first]),
        "inter_token_latency_seconds": (gap_s, of[gap_row]),
        "request_time_per_output_token_seconds": (tpot_s, of[several]),
        "e2e_request_latency_seconds": ((requests.last_token_s - requests.arrival_s)[done], of[done]),
        "request_queue_time_seconds": ((requests.scheduled_s - requests.arrival_s)[done], of[done]),
        "request_inference_time_seconds": ((engine.last_token_s - engine.scheduled_s)[done], of[done]),
        "request_prefill_time_seconds": ((engine.first_token_s - engine.scheduled_s)[done], of[done]),
        "request_decode_time_seconds": (decode_s[done], of[done]),
        "request_prompt_tokens": (requests.input_tokens[done], of[done]),
        "request_generation_tokens": (requests.output_tokens[done], of[done]),
        "request_params_max_tokens": (requests.max_tokens[all_], of[all_]),
        "request_params_n": (np.ones(len(all_)), of[all_]),
        "request_num_preemptions": (requests.preemptions[done], of[done]),
    }


FORMAT = ExportFormat(
    title="promtool, dashboards: vLLM's metrics at the end",
    note="vLLM's counters, gauges and histograms as they stand at the end",
    files=(FILE,),
    write=_write,
    extra="serve",
    package="prometheus_client",
)
