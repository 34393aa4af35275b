"""Seconds that a layer takes to launch, by its kind."""

from dataclasses import replace

from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import MODELS
from simulator.timing.host import layer_launch_s

H200 = find_gpu("h200")


def test_a_layer_of_more_kernels_takes_longer_to_launch() -> None:
    names = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b")
    found = [layer_launch_s(MODELS[name], H200, compiled=True) for name in names]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_block_scaled_experts_take_longer_unless_the_server_compiles_them() -> None:
    wide, blocks = (replace(MODELS["deepseek-v3"], matmul_dtype=dtype) for dtype in ("bf16", "fp8_block"))
    assert layer_launch_s(blocks, H200) == layer_launch_s(wide, H200) + 1.5e-3
    assert layer_launch_s(blocks, find_gpu("b200")) == layer_launch_s(wide, H200) + 0.6e-3
    assert layer_launch_s(blocks, H200, compiled=True) == layer_launch_s(wide, H200)
    dense = replace(MODELS["qwen3-32b"], matmul_dtype="fp8_block")
    assert layer_launch_s(dense, H200) == layer_launch_s(MODELS["qwen3-32b"], H200)
