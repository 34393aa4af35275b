"""A metric of one's own: how much later the slowest first tokens come than the usual ones.

    batchlab run quickstart --set "measure.metrics=[./my_metric.py:METRIC]"
    batchlab compare quickstart --set "measure.metrics=[./my_metric.py:METRIC]"

A metric is a `Metric` with a key of its own. Its function is given a `Sample`: the rows of the run (`sample.records`)
and which requests count (`sample.done` are those that have finished). `simulator/results/records.py` names every
column, `simulator/metrics/latency.py` has TTFT, TPOT and end-to-end latency of each request. None stands for undefined.
"""

import numpy as np

from simulator.metrics.latency import ttft_s
from simulator.metrics.metric import Metric, Sample


def ttft_tail(sample: Sample) -> float | None:
    """Ratio of the 99th percentile of TTFT to its median; None without a finished request."""
    seconds = ttft_s(sample.records)[sample.done]
    if not len(seconds) or not np.median(seconds):
        return None
    return float(np.percentile(seconds, 99) / np.median(seconds))


METRIC = Metric(
    key="ttft_tail",
    title="TTFT p99 / p50",
    unit="",
    definition="99th percentile of TTFT over its median",
    of=ttft_tail,
    better=-1,  # less is better; +1: more, 0: neither
)
