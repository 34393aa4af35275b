"""Run with TRITON_INTERPRET=1: the Triton kernel and captured decode steps against torch's attention, as JSON."""

from __future__ import annotations

import json
from typing import Any

from gpu_backend.backend import Backend
from gpu_backend.device import Cpu
from gpu_backend.executor import DeviceExecutor, RequestTrace
from gpu_backend.weights import random_pages
from gpu_backend.work import ScheduledPart, Work
from simulator.hardware.models import Model, custom_model
from simulator.memory.blocks import BlockManager
from simulator.simulate import simulate
from tests.gpu_maker import differences, policy_maker
from tests.laws.scenarios import Memory, make_workload

DIMENSIONS = {
    "layers": 1, "hidden": 32, "intermediate": 48, "heads": 4, "kv_heads": 2, "vocab": 128, "max_model_len": 256
}  # fmt: skip
MODEL = custom_model(DIMENSIONS)
MIXTURE = custom_model({**DIMENSIONS, "experts": 4, "active_experts": 2})
WORKLOAD = make_workload([0.0, 0.0, 0.001], [(5, 3), (18, 4), (9, 2)])


def stories(policy: str, model: Model = MODEL, **options: Any) -> dict[int, RequestTrace]:
    executor = DeviceExecutor(Backend(model, Cpu(1), 40, 4, **options), debug=True)
    simulate(
        WORKLOAD,
        make_policy=policy_maker(policy, budget=16),
        kv=Memory(41, 4),
        make_executor=lambda: executor,
        make_blocks=BlockManager,
    )
    return executor.stories


def main() -> None:
    found: dict[str, Any] = {}
    for name, policy, model in (
        ("static", "static", MODEL), ("chunked_prefill", "chunked_prefill", MODEL), ("mixture", "continuous", MIXTURE)
    ):  # fmt: skip
        kernel = stories(policy, model, attention="triton", pointwise="triton", graphs=[1, 4], max_graph_context=64)
        found[name] = differences(stories(policy, model, attention="torch"), kernel)
    found["fp8"] = fp8_apart()
    print(json.dumps(found))


def fp8_apart() -> float:
    """How far logits of a step are apart, weights and pages in fp8, by torch's operators and by kernels."""
    model = custom_model({**DIMENSIONS, "dtype_bytes": 1, "kv_dtype_bytes": 1})
    step = Work((ScheduledPart(0, 9, [5], (3, 4, 5)),), (ScheduledPart(1, 4, [7] * 9, (6, 7, 8, 9)),))
    logits = []
    for name in ("torch", "triton"):
        backend = Backend(model, Cpu(1), 40, 4, seed=3, attention=name, pointwise=name)
        random_pages(backend.pool.kv, 7)
        logits.append(backend.logits(step))
    return float((logits[0] - logits[1]).norm() / logits[0].norm())


if __name__ == "__main__":
    main()
