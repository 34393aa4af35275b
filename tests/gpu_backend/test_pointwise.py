"""A layer's small operators: the kernels against float64 in Triton's interpreter, and what computes them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

import torch

from gpu_backend.backend import Backend
from gpu_backend.decoder import TorchPointwise
from gpu_backend.device import Cpu
from gpu_backend.kernel_choice import default_pointwise, open_pointwise
from simulator.errors import InputError
from tools.kernel_bench.device_checks import MODEL, Skipped, kernels_between_give_the_same_logits

ROUNDING = {"float32": 1e-6, "bfloat16": 8e-3}  # bfloat16 keeps 8 bits; normed heads are rounded twice


def test_interpreted_kernels_against_float64() -> None:
    pytest.importorskip("triton", reason="triton is not installed (pip install --no-deps triton)")
    from tests.gpu_backend.test_kernel import interpreted
    from tests.gpu_pointwise_cases import CASES

    found = [json.loads(line) for line in interpreted("tests.gpu_pointwise_cases")]
    assert [case["name"] for case in found] == [case.name for case in CASES]
    for case in found:
        allowed = ROUNDING["bfloat16" if "bfloat16" in case["name"] else "float32"]
        assert max(case["errors"].values()) <= allowed, case
        assert case["errors"]["value"] == 0.0
        assert case["elsewhere"] == 0


def test_torch_computes_them_on_a_cpu() -> None:
    assert default_pointwise("cpu") == "torch"
    assert default_pointwise("cuda") == "triton"
    backend = Backend(MODEL, Cpu(1), 16, 16)
    assert isinstance(backend.decoder.pointwise, TorchPointwise)
    assert backend.decoder.placing is None
    assert backend.kernels == {"attention": "torch", "pointwise": "torch"}
    with pytest.raises(Skipped, match="torch's operators"):
        kernels_between_give_the_same_logits("cpu")


def test_another_name_is_refused() -> None:
    with pytest.raises(InputError, match="pointwise"):
        open_pointwise("cutlass", 1e-5)


def test_the_stream_is_not_changed_in_place() -> None:
    hidden, part = torch.ones(2, 4), torch.ones(2, 4)
    backend = Backend(MODEL, Cpu(1), 16, 16)
    backend.decoder.pointwise.add_norm(hidden, part, backend.decoder.weights.norm.__class__(torch.ones(4), None))
    assert hidden.eq(1).all()
