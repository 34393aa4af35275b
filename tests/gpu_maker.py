"""Small models, workloads and device runs for the tests of the real backend. Importing it needs torch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from gpu_backend.backend import Backend
from gpu_backend.device import Cpu
from gpu_backend.executor import DeviceExecutor, RequestTrace
from simulator.hardware.models import Model, custom_model
from simulator.memory.blocks import BlockManager
from simulator.memory.prefix_cache import PrefixCache
from simulator.plan import Policy
from simulator.results.records import Records
from simulator.simulate import simulate
from simulator.timing.executor import Executor
from simulator.workload import Workload
from tests.laws.scenarios import Memory, make_workload

TINY = custom_model(
    {"layers": 2, "hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "vocab": 512, "max_model_len": 1024}
)
CLOSE = 1e-4  # logits of the same thing in float32, computed in another order

WORKLOAD = make_workload(
    [0.0, 0.0, 0.0, 0.004, 0.01, 0.011, 0.05],
    [(5, 17), (12, 3), (41, 29), (33, 20), (7, 1), (20, 12), (64, 9)],
)


def backend(
    model: Model = TINY, blocks: int = 256, block_size: int = 4, host: int = 0, layers: int | None = None
) -> Backend:
    return Backend(model, Cpu(repeats=1), blocks - 1, block_size, host, layers=layers, seed=3)


def serve(
    policy: Callable[[], Policy],
    workload: Workload = WORKLOAD,
    *,
    model: Model = TINY,
    blocks: int = 256,
    block_size: int = 4,
    host: int = 0,
    caches: bool = False,
    wrap: Callable[[DeviceExecutor], Executor] = lambda executor: executor,
) -> tuple[DeviceExecutor, Records]:
    """Serve the workload on the CPU with every check on; returns the executor and the records."""
    executor = DeviceExecutor(backend(model, blocks, block_size, host), debug=True)
    run = simulate(
        workload,
        make_policy=policy,
        kv=Memory(blocks, block_size, host),
        make_executor=lambda: wrap(executor),
        make_blocks=partial(PrefixCache, block_size=block_size) if caches else BlockManager,
    )
    return executor, run.records


def differences(expected: dict[int, RequestTrace], found: dict[int, RequestTrace]) -> list[str]:
    """Where two runs gave a request other tokens, or the same with other logits.

    Where the best two logits are closer than what rounding does to them, either token is right, and what follows is
    another sequence.
    """
    said: list[str] = []
    if sorted(expected) != sorted(found):
        said.append(f"rows {sorted(expected)} and {sorted(found)}")
    for row in sorted(set(expected) & set(found)):
        said += _differences(row, expected[row], found[row])
    return said


def _differences(row: int, one: RequestTrace, other: RequestTrace) -> Sequence[str]:
    if len(one.sampled) != len(other.sampled):
        return [f"row {row} has {len(one.sampled)} and {len(other.sampled)} tokens"]
    for place, (a, b) in enumerate(zip(one.best, other.best, strict=True)):
        if max(abs(a[0] - b[0]), abs(a[1] - b[1])) > CLOSE:
            return [f"row {row}, token {place}: logits {a} and {b}"]
        if one.sampled[place] != other.sampled[place]:
            return [] if a[0] - a[1] < CLOSE else [f"row {row}, token {place}: another token"]
    return []


def tokens(executor: DeviceExecutor) -> dict[int, list[int]]:
    return {row: story.sampled for row, story in sorted(executor.stories.items())}


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one.double() - other.double()).abs().max() < CLOSE)


def policy_maker(name: str, **options: Any) -> Callable[[], Policy]:
    """A built-in policy with small limits."""
    from tests.laws.scenarios import make_policy

    given = {"seqs": 4, "budget": 24, **options}
    return lambda: make_policy(name, **given)
