"""Metrics of a router's regret: what the best replica for each request had, and the chosen one had not."""

from collections.abc import Callable

import numpy as np

from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import FRACTION, Metric, Value
from simulator.results.records import Ints


def _of(value: Callable[[Ints, Ints, Ints], float]) -> Callable[[Sample], Value]:
    """A value of measured requests: cached tokens that the choice lost, prompt tokens, and the longer queue."""

    def metric(sample: Sample) -> Value:
        regrets = sample.records.regrets
        if regrets is None:
            return None
        measured = sample.measured[regrets.row]
        lost = (regrets.most_cached_tokens - regrets.cached_tokens)[measured]
        longer = (regrets.unfinished - regrets.fewest_unfinished)[measured]
        prompts = sample.records.requests.input_tokens[regrets.row[measured]]
        return value(lost, prompts, longer) if len(lost) else None

    return metric


REGRET_METRICS = (
    Metric(
        "overlap_lost_rate", "overlap lost", FRACTION,
        "prompt tokens in the fullest cache for the request, but not in the chosen replica's / prompt tokens",
        _of(lambda lost, prompts, _: int(lost.sum()) / int(prompts.sum())), better=-1, is_rare=True,
    ),
    Metric(
        "overlap_missed", "best cache missed", FRACTION, "requests for which another replica had more in its cache",
        _of(lambda lost, _, __: float((lost > 0).mean())), better=-1, is_rare=True,
    ),
    Metric(
        "mean_queue_excess", "queue excess mean", "requests",
        "unfinished requests on the chosen replica less those on the one with the fewest, mean over requests",
        _of(lambda _, __, longer: float(longer.mean())), better=-1, is_rare=True,
    ),
    Metric(
        "p99_queue_excess", "queue excess p99", "requests", "99th percentile of that difference",
        _of(lambda _, __, longer: float(np.percentile(longer, 99))), better=-1, is_rare=True,
    ),
)  # fmt: skip
