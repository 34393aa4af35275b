"""Element-wise kernels: what the cache holds is moved at its pace, the rest at the memory's."""

from dataclasses import replace

import pytest

from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.models import MODELS
from simulator.timing.formula_cost import BANDWIDTH_EFFICIENCY
from simulator.timing.tables.assumed import L2_GB_S, LAUNCH_US, elementwise, sampler

LLAMA, QWEN = MODELS["llama-3.1-8b"], MODELS["qwen3-8b"]
GPU = GPUS["rtx-pro-6000"]
NORM_BYTES = 16 * LLAMA.hidden
"""Of a token, by both norms."""


def test_small_operands_are_found_in_the_cache_and_large_ones_are_not() -> None:
    norm = elementwise(LLAMA, GPU, 1)["norm"]
    memory = GPU.bandwidth_gb_s * BANDWIDTH_EFFICIENCY * 1e3
    most = int(GPU.l2_mib * 2**20 / (4 * LLAMA.hidden))  # tokens whose operands fit: 8192
    assert norm.at(256) == pytest.approx(2 * LAUNCH_US + 256 * NORM_BYTES / (L2_GB_S * 1e3), rel=1e-3)
    assert norm.at(most) == pytest.approx(2 * LAUNCH_US + most * NORM_BYTES / (L2_GB_S * 1e3), rel=1e-3)
    activation = elementwise(LLAMA, GPU, 1)["activation"]
    large = 8192
    assert activation.at(large) == pytest.approx(LAUNCH_US + large * 6 * LLAMA.intermediate / memory, rel=1e-3)
    sizes = [activation.at(tokens) for tokens in range(1, 20000, 37)]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("gpu", [replace(GPU, l2_mib=0.0), GPUS["b200"]], ids=["unknown", "as-fast-as-memory"])
def test_all_comes_from_memory_where_the_cache_is_unknown_or_no_faster(gpu: Gpu) -> None:
    norm = elementwise(LLAMA, gpu, 1)["norm"]
    memory = gpu.bandwidth_gb_s * BANDWIDTH_EFFICIENCY * 1e3
    for tokens in (1, 256, 8192, 20000):
        assert norm.at(tokens) == pytest.approx(2 * LAUNCH_US + tokens * NORM_BYTES / memory, rel=1e-3)


def test_measured_samplers_of_a_card_are_met() -> None:
    """LLMServingSim, RTX PRO 6000, vocabulary of 128,256: 25, 29, 40 and 164 us for 1, 16, 64 and 256 rows."""
    found = sampler(LLAMA, GPU)
    assert [found.at(rows) for rows in (1, 16, 64)] == pytest.approx([25.0, 29.0, 40.0], rel=0.03)
    assert found.at(256) < 2 * 164


def test_normalised_heads_take_a_kernel() -> None:
    assert "qk_norm" in elementwise(QWEN, GPU, 1)
    assert "qk_norm" not in elementwise(LLAMA, GPU, 1)
