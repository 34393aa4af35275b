"""Sixty requests on forty blocks: many are preempted, some more than once."""

import numpy as np

from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.columns import as_floats
from tests.laws.scenarios import Memory, Scenario


def short_of_memory() -> Scenario:
    """Decodes go on beside the prefill that computes a victim again, and no request is paused."""
    n = 60
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, n)
    zeros = np.zeros(n, dtype=np.int64)
    workload = Workload(
        as_floats(np.arange(n) * 0.02), rng.integers(5, 40, n), lengths, lengths, zeros, zeros, ("default",)
    )
    policy = ChunkedPrefill(max_num_seqs=16, max_num_batched_tokens=32)
    return Scenario(workload, policy, Memory(40, 8, 0), Linear(0.005, 1e-4, 1e-6), 0.0, False, 1, "round_robin")
