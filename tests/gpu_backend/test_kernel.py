"""The attention kernels against float64: in Triton's interpreter on any machine, and as they are on a GPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from packaging.version import Version

from tests.gpu_kernel_cases import GROUPS, TOLERANCE

torch = pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")
triton = pytest.importorskip("triton", reason="triton is not installed (pip install --no-deps triton)")

CHECKS = ("write", "write_fp8", "one_call", "write_then_look", "reserved", "refused")


@cache
def no_interpreter() -> str | None:
    """Why the interpreter does not work here, or None."""
    if Version(triton.__version__) < Version("3.7") and Version(np.__version__) >= Version("2.4"):
        return f"the interpreter of Triton {triton.__version__} does not work with numpy {np.__version__}"
    return None


def interpreted(module: str, *arguments: str) -> list[str]:
    """The lines that a module prints with the kernels interpreted: in a process of its own, because Triton decides
    when it is loaded."""
    if reason := no_interpreter():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("group", GROUPS)
def test_interpreted_kernels_against_float64(group: str) -> None:
    found = {line["name"]: line["error"] for line in map(json.loads, interpreted("tests.gpu_kernel_cases", group))}
    assert list(found) == [case.name for case in GROUPS[group]]
    bad = {case.name: found[case.name] for case in GROUPS[group] if not found[case.name] <= TOLERANCE[case.dtype]}
    assert bad == {}


def test_host_side_interpreted() -> None:
    assert interpreted("tests.gpu_kernel_checks") == list(CHECKS)


def test_a_cpu_tensor_is_refused() -> None:
    from gpu_backend import kernels
    from gpu_backend.attention.paged import PagedAttention

    if kernels.INTERPRETED:
        pytest.skip("TRITON_INTERPRET is set, and the interpreter takes CPU tensors")
    with pytest.raises(ValueError, match="need a CUDA device"):
        PagedAttention(4, 2, 64, 16, "cpu", torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("group", GROUPS)
def test_kernels_against_float64(group: str) -> None:
    from tests.gpu_kernel_cases import worst_row

    errors = {case.name: worst_row(case, "cuda") for case in GROUPS[group]}
    tolerance = TOLERANCE | {"float32": 3e-6}  # a GPU's exp2 is good to two units in the last place
    limits = {case.name: tolerance[case.dtype] for case in GROUPS[group]}
    assert {name: error for name, error in errors.items() if not error <= limits[name]} == {}
    assert not any(math.isnan(error) for error in errors.values())


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHECKS)
def test_host_side(name: str) -> None:
    from tests import gpu_kernel_checks

    gpu_kernel_checks.CHECKS[name]("cuda")


@pytest.mark.gpu
def test_a_captured_graph_follows_the_step() -> None:
    from tests.gpu_kernel_checks import attention, cache, step

    kv, paged = cache("cuda"), attention("cuda")
    room = paged.reserve(3, 120)
    q, out = torch.randn((3, 4, 32), device="cuda"), torch.empty((3, 4, 32), device="cuda")
    paged.prepare_step(step([30, 100, 7], [1, 1, 1]), into=room)
    paged.look(q, kv, room, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        paged.look(q, kv, room, out)
    for seed, context in enumerate(([30, 100, 7], [1, 2, 33], [120, 64, 65])):
        plan = step(context, [1, 1, 1], seed)
        paged.prepare_step(plan, into=room)
        q.normal_()
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, paged.look(q, kv, paged.prepare_step(plan)))
