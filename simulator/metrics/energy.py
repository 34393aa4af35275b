"""Energy of a run's GPUs: rough, from a power limit and public measurements of what share of it is drawn when.

- Idle, with a model loaded: 14 to 18 % of the limit. A CUDA context draws 26 to 50 W more than bare idle on GPUs with
  HBM (H100, A100: The Model Parking Tax, arXiv:2605.23918); a bare H200 of 700 W was measured at 74 W
  (conservemode.com, case studies).
- Busy: 300 W of an H100's 700 at a batch of one and 600 W at 128 (ML.ENERGY Benchmark 3.0, as quoted by vLLM's semantic
  router, fleet-sim, "Power Model"). Between them the share grows here with the logarithm of the tokens of a step, and
  stays from 128 tokens on, so that prompts draw 600 W. Other GPUs are taken to draw the same shares of their limits.

The interval has all busy time at the least of these, and at the whole limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.metrics.metric import Metric
from simulator.metrics.presence import present_s
from simulator.metrics.window import Window
from simulator.results.records import Records

IDLE = (0.14, 0.16, 0.18)  # shares of the limit: low, taken, high
LEAST, MOST, WHOLE = 300 / 700, 600 / 700, 1.0
FULL_TOKENS = 128

TDP_W = {
    "h200": 700, "h100": 700, "h20": 400, "b200": 1000, "b300": 1400, "gb200": 1200, "gb300": 1400, "a100-80gb": 400,
    "a100-40gb": 400, "l40s": 350, "l4": 72, "a10g": 150, "rtx-4090": 450, "rtx-5090": 575, "rtx-pro-6000": 600,
    "mi300x": 750,
}  # fmt: skip
"""Power limits of the datasheets that `simulator.hardware.gpus` names, in watts."""


@dataclass(frozen=True, slots=True)
class Joules:
    """Energy of a run, and the interval that its sources leave."""

    taken: float
    low: float
    high: float


def joules(records: Records, window: Window, limits_w: Sequence[float]) -> Joules:
    """The energy of all replicas in a window; `limits_w` is the power limit of each replica's GPUs together."""
    rows, limit_w = records.rows, np.asarray(limits_w, dtype=np.float64)
    busy_s = np.clip(np.minimum(rows.end_s, window.end_s) - np.maximum(rows.start_s, window.start_s), 0.0, None)
    grown = np.log2(np.clip(rows.tokens, 1, FULL_TOKENS)) / np.log2(FULL_TOKENS)
    limit_s = np.bincount(rows.replica, busy_s, records.replicas) @ limit_w
    busy = float((busy_s * (LEAST + (MOST - LEAST) * grown)) @ limit_w[rows.replica])
    present = present_s(records, window)
    idle_s = float(np.clip(present - np.bincount(rows.replica, busy_s, records.replicas), 0.0, None) @ limit_w)
    low, taken, high = (share * idle_s for share in IDLE)
    return Joules(busy + taken, float(limit_s) * LEAST + low, float(limit_s) * WHOLE + high)


_ROUGH = "rough: docs/reference.md, energy"
ENERGY_METRICS = (
    Metric(
        "joules_per_output_token", "energy", "J/tok", "energy of the GPUs, idle ones included / output tokens", None,
        better=-1, remark=_ROUGH, is_rare=True,
    ),
    Metric(
        "joules_per_output_token_low", "energy, at least", "J/tok", "the same, all busy time at a batch of one", None,
        better=-1, is_rare=True,
    ),
    Metric(
        "joules_per_output_token_high", "energy, at most", "J/tok", "the same, all busy time at the power limit", None,
        better=-1, is_rare=True,
    ),
    Metric(
        "grams_co2_per_million_output_tokens", "CO2", "g/M tok", "that energy x the grid's grams per kWh", None,
        better=-1, remark=_ROUGH, is_rare=True,
    ),
)  # fmt: skip
