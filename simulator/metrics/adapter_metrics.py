"""Metrics of LoRA adapters: how often one had to be loaded, and how long requests were shut out."""

from collections.abc import Callable

import numpy as np

from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import FRACTION, MS, Metric, Value
from simulator.results.records import Floats, Ints


def _of(value: Callable[[Ints, Floats], float]) -> Callable[[Sample], Value]:
    """A value of the admissions of measured requests: whether they load, and for how long they were shut out."""

    def metric(sample: Sample) -> Value:
        adapters = sample.records.adapters
        if adapters is None:
            return None
        measured = sample.measured[adapters.row]
        loaded, shut_out_s = adapters.loaded[measured], adapters.shut_out_s[measured]
        return value(loaded, shut_out_s) if len(loaded) else None

    return metric


ADAPTER_METRICS = (
    Metric(
        "lora_loads", "adapters loaded", "", "admissions for which an adapter was copied to the GPU",
        _of(lambda loaded, _: int(loaded.sum())), better=-1, is_rare=True,
    ),
    Metric(
        "lora_hit_rate", "adapters there", FRACTION, "admissions whose adapter lay on the GPU / those with an adapter",
        _of(lambda loaded, _: 1 - float(loaded.mean())), better=1, is_rare=True,
    ),
    Metric(
        "lora_shut_out_rate", "shut out", FRACTION,
        "admissions that waited while other adapters took all slots / those with an adapter",
        _of(lambda _, shut_out_s: float((shut_out_s > 0).mean())), better=-1, is_rare=True,
    ),
    Metric(
        "mean_lora_shut_out_ms", "shut out mean", MS, "time in the queue with all slots taken by other adapters, mean",
        _of(lambda _, shut_out_s: float(shut_out_s.mean()) * 1e3), better=-1, is_rare=True,
        remark="of admissions with an adapter; a part of the queue time",
    ),
    Metric(
        "p99_lora_shut_out_ms", "shut out p99", MS, "99th percentile of that time",
        _of(lambda _, shut_out_s: float(np.percentile(shut_out_s, 99)) * 1e3), better=-1, is_rare=True,
    ),
)  # fmt: skip
