"""Metrics of KV beyond the GPUs: what measured requests found in each tier, what was copied, how busy links were."""

from collections.abc import Callable
from functools import partial

import numpy as np

from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import Metric, Value
from simulator.metrics.window import Bools
from simulator.results.records import CopyColumns, Ints, Records

Figure = Callable[[CopyColumns, Bools, Sample], float]
_PLACES = ("the host", "the first further tier", "the second further tier")


def _of(tier: int, stored: int, value: Figure) -> Callable[[Sample], Value]:
    def metric(sample: Sample) -> Value:
        copies = sample.records.copies
        if copies is None or not (copies.tier == tier).any():
            return None
        return value(copies, (copies.tier == tier) & (copies.stored == stored), sample)

    return metric


def _gib(copies: CopyColumns, chosen: Bools, sample: Sample) -> float:
    return float(copies.bytes[chosen & sample.measured[copies.row]].sum()) / 2**30


def _hit_rate(copies: CopyColumns, chosen: Bools, sample: Sample) -> float:
    requests = sample.records.requests
    found = copies.tokens[chosen & sample.measured[copies.row]].sum()
    asked = requests.input_tokens[sample.measured & (requests.scheduled_s == requests.scheduled_s)].sum()
    return float(found / asked) if asked else 0.0


def _busy(copies: CopyColumns, chosen: Bools, sample: Sample) -> float:
    ends_s = sample.records.step_end_s
    whole_s = (float(ends_s.max()) if len(ends_s) else 0.0) * sample.records.replicas
    return float((copies.end_s - copies.start_s)[chosen].sum()) / whole_s if whole_s else 0.0


def loaded_tokens(records: Records) -> Ints:
    """For every request, the tokens whose KV was loaded from the host, at all its admissions."""
    copies, rows = records.copies, len(records.requests.row)
    if copies is None:
        return np.zeros(rows, dtype=np.int64)
    chosen = (copies.tier == 0) & (copies.stored == 0)
    return np.bincount(copies.row[chosen], copies.tokens[chosen], rows).astype(np.int64)


def _metrics(tier: int) -> tuple[Metric, ...]:
    key, place = f"kv_tier_{tier}" if tier else "kv_offload", _PLACES[tier]
    rare = partial(Metric, is_rare=True)
    busy = "seconds of a replica's copies {} / its run; more than 1 where latencies pass beside each other"
    busy = busy if tier else "share of the run in which a replica's link copies {}"
    return (
        rare(
            f"{key}_hit_rate", f"found {'in' if tier else 'on'} {place}", "",
            f"prompt tokens loaded from {place} / prompt tokens", _of(tier, 0, _hit_rate), better=1,
            remark="it comes through the host, and counts as found there too" if tier else
            "beside prefix_cache_hit_rate, which is the GPUs'; all admissions together",
        ),
        rare(f"{key}_load_gib", "KV loaded", "GiB", f"KV copied from {place}", _of(tier, 0, _gib)),
        rare(f"{key}_store_gib", "KV stored", "GiB", f"KV copied to {place}", _of(tier, 1, _gib)),
        rare(f"{key}_load_busy", "loads", "", busy.format(f"from {place}"), _of(tier, 0, _busy)),
        rare(f"{key}_store_busy", "stores", "", busy.format(f"to {place}"), _of(tier, 1, _busy)),
    )  # fmt: skip


COPY_METRICS = tuple(metric for tier in range(len(_PLACES)) for metric in _metrics(tier))
