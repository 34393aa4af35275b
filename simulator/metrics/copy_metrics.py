"""Metrics of KV on the host: what measured requests found there, what was copied, and how busy the link was."""

from collections.abc import Callable

from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import Metric, Value
from simulator.results.records import CopyColumns


def _of(stored: int, value: Callable[[CopyColumns, Sample, int], float]) -> Callable[[Sample], Value]:
    def metric(sample: Sample) -> Value:
        copies = sample.records.copies
        return None if copies is None else value(copies, sample, stored)

    return metric


def _gib(copies: CopyColumns, sample: Sample, stored: int) -> float:
    return float(copies.bytes[(copies.stored == stored) & sample.measured[copies.row]].sum()) / 2**30


def _hit_rate(copies: CopyColumns, sample: Sample, stored: int) -> float:
    requests = sample.records.requests
    found = copies.tokens[(copies.stored == stored) & sample.measured[copies.row]].sum()
    asked = requests.input_tokens[sample.measured & (requests.scheduled_s == requests.scheduled_s)].sum()
    return float(found / asked) if asked else 0.0


def _busy(copies: CopyColumns, sample: Sample, stored: int) -> float:
    ends_s = sample.records.step_end_s
    whole_s = (float(ends_s.max()) if len(ends_s) else 0.0) * sample.records.replicas
    copied = copies.stored == stored
    return float((copies.end_s - copies.start_s)[copied].sum()) / whole_s if whole_s else 0.0


COPY_METRICS = (
    Metric(
        "kv_offload_hit_rate", "found on the host", "", "prompt tokens loaded from the host / prompt tokens",
        _of(0, _hit_rate), better=1, is_rare=True,
        remark="beside prefix_cache_hit_rate, which is the GPUs'; all admissions together",
    ),
    Metric("kv_offload_load_gib", "KV loaded", "GiB", "KV copied from the host", _of(0, _gib), is_rare=True),
    Metric("kv_offload_store_gib", "KV stored", "GiB", "KV copied to the host", _of(1, _gib), is_rare=True),
    Metric(
        "kv_offload_load_busy", "loads", "", "share of the run in which a replica's link copies from the host",
        _of(0, _busy), is_rare=True,
    ),
    Metric(
        "kv_offload_store_busy", "stores", "", "share of the run in which a replica's link copies to the host",
        _of(1, _busy), is_rare=True,
    ),
)  # fmt: skip
