"""A CPU whose clock counts work instead of time: the same figures on a busy machine as on an idle one.

A step is really executed, and priced by what torch did for it: so many operators, floating-point operations and bytes.
What is measured, fitted and predicted then goes through all of the real code, and is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from gpu_backend.device import Cpu

OPERATOR_S = 2e-5
FLOPS = 2e9  # per second
BYTES = 1e9  # per second
POOL_BYTES = 64 * 2**20


class WorkClock(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """Seconds of the torch operators executed inside, views not counted: they move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: float = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            # What is written in place is as large as what comes in: a page of the pool, not the pool.
            self.seconds += OPERATOR_S + _bytes(args[1:] if func._schema.is_mutable else result) / BYTES
            count = flop_registry.get(func.overloadpacket)
            if count is not None:
                flops = count(*args, **(kwargs or {}), out_val=result)
                self.seconds += max(flops / FLOPS, _bytes(args) / BYTES)
        return result


def _bytes(values: object) -> int:
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def count_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every `Cpu` device tell counted seconds, over few pages: filling half a GiB of them takes seconds."""
    host = [0.0]

    def seconds(self: Cpu, work: Callable[[], object], kind: str = "") -> float:
        del kind
        with WorkClock() as clock:
            work()
        host[0] += clock.seconds
        return float(clock.seconds)

    def host_s(self: Cpu) -> float:
        host[0] += OPERATOR_S
        return host[0]

    monkeypatch.setattr("gpu_backend.session._CPU_POOL_BYTES", POOL_BYTES)
    monkeypatch.setattr(Cpu, "seconds", seconds)
    monkeypatch.setattr(Cpu, "host_s", host_s)
