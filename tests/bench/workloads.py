"""The workloads that speed is measured on."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from scenarios.profiles import shipped_profiles
from simulator.hardware.gpus import GPUS
from simulator.hardware.kv import MemorySettings
from simulator.hardware.models import MODELS
from simulator.plan import Policy
from simulator.policies import load_policy
from simulator.simulate import Run, simulate
from simulator.timing.cost import CostModel
from simulator.timing.formula_cost import Linear, Roofline
from simulator.timing.profile import Profile, ProfileCost, read_profile
from simulator.workload import Workload
from tests.columns import workload_of
from tests.shared_data import shared


def normal_lengths(requests: int, rate: float, seed: int = 0) -> Workload:
    """Poisson arrivals; about 512 tokens in and 512 out: normal, sd 256, at least 2."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / rate, requests))
    inputs, outputs = (np.maximum(2, np.rint(rng.normal(512.0, 256.0, requests))).astype(np.int64) for _ in range(2))
    return workload_of(arrivals - arrivals[0], inputs, outputs)


@cache
def _profile() -> Profile:
    return read_profile(shipped_profiles()["h200-llama-3.1-8b"])


MODEL, GPU = MODELS["llama-3.1-8b"], GPUS["h200"]
LINEAR = {"base_s": 0.006, "per_token_s": 2e-5, "per_context_token_s": 2e-8}

COSTS: dict[str, Callable[[], CostModel]] = {
    "linear": lambda: Linear(**LINEAR),
    "roofline": lambda: Roofline(MODEL, GPU),
    "profile": lambda: ProfileCost(_profile()),
}
"""A new cost model of each kind: what it works out as it goes belongs to the run."""


def azure_chat(rate_scale: float) -> Workload:
    """The Azure chat hour of 2023, 19,366 requests; skips or fails where it is not there (`tests.shared_data`)."""
    from scenarios.traces import TraceOptions, read_trace

    return read_trace(shared("traces/AzureLLMInferenceTrace_conv.csv.gz"), TraceOptions(rate_scale=rate_scale))


def serve_on_h200(workload: Workload, policy: str, cost: str = "roofline", replicas: int = 1) -> Callable[[], Run]:
    """A run of llama-3.1-8b on H200s with 256 slots each, in turn, ready to be called."""
    kv = MemorySettings(MODEL, GPU).kv_cache()

    def make_policy() -> Policy:
        return load_policy(policy, {"max_num_seqs": 256, "max_num_batched_tokens": 2048})

    def run() -> Run:
        return simulate(workload, make_policy=make_policy, kv=kv, cost=COSTS[cost](), replicas=replicas)

    return run


def per_second(benchmark: Any, requests: int) -> None:
    """Note requests per CPU second beside the benchmark's own figures."""
    if benchmark.stats is not None:
        benchmark.extra_info["requests_per_cpu_s"] = round(requests / benchmark.stats.stats.min)
        print(f"\n{benchmark.name}: {benchmark.extra_info['requests_per_cpu_s']:,} requests per CPU second")
