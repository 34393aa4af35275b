from dataclasses import replace

import pytest

from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, custom_gpu, find_gpu

CONTRACT = ("h200", "h100", "a100-80gb", "l40s", "rtx-4090", "rtx-pro-6000", "b200", "mi300x")

# The capacity on the box, which is in GiB whatever the box says. The driver reports a little less, never more.
ON_THE_BOX = {
    "h200": 141,
    "h100": 80,
    "h20": 96,
    "b200": 180,
    "b300": 270,  # of GB here, as NVIDIA counts them per GPU of a system
    "gb200": 186,
    "gb300": 279,
    "a100-80gb": 80,
    "a100-40gb": 40,
    "l40s": 48,
    "l4": 24,
    "a10g": 24,
    "rtx-4090": 24,
    "rtx-5090": 32,
    "rtx-pro-6000": 96,
    "mi300x": 192,
    "mi325x": 256,
}


def test_the_contract_names_are_there() -> None:
    assert set(CONTRACT) <= set(GPUS)


@pytest.mark.parametrize("name", GPUS)
def test_memory_is_what_the_driver_leaves_of_the_nominal(name: str) -> None:
    assert 0.91 < GPUS[name].memory_gib / ON_THE_BOX[name] < 1


@pytest.mark.parametrize("name", GPUS)
def test_peaks_are_of_one_kind(name: str) -> None:
    """Dense bf16 and datasheet bandwidth: operations for a byte lie between H20's 37 and L40S's 419."""
    gpu = GPUS[name]
    assert gpu.name == name
    assert 30 < gpu.bf16_tflops * 1e3 / gpu.bandwidth_gb_s < 450
    assert gpu.host_link_gb_s < gpu.link_gb_s < gpu.bandwidth_gb_s
    assert gpu.source


def test_find_gpu_names_the_nearest() -> None:
    assert find_gpu("h200") is GPUS["h200"]
    with pytest.raises(InputError, match="unknown gpu 'a100'") as error:
        find_gpu("a100")
    assert "did you mean a100-80gb or a100-40gb?" in str(error.value)
    with pytest.raises(InputError) as error:
        find_gpu("RTX4090")
    assert "did you mean rtx-4090?" in str(error.value)


def test_custom_gpu() -> None:
    gpu = custom_gpu({"memory_gib": 40, "bandwidth_gb_s": 1500.5, "bf16_tflops": 300})
    assert (gpu.memory_gib, gpu.bandwidth_gb_s, gpu.bf16_tflops) == (40.0, 1500.5, 300.0)
    assert (gpu.host_link_gb_s, gpu.link_gb_s, gpu.usd_per_hour) == (25.0, 32.0, None)


def test_custom_gpu_over_a_base() -> None:
    gpu = custom_gpu({"base": "h100", "usd_per_hour": 2, "memory_gib": 94})
    assert gpu == replace(GPUS["h100"], name="h100 (changed)", usd_per_hour=2.0, memory_gib=94.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_gb": 80}, "unknown key 'memory_gb'"),
        ({"memory_gib": 0}, "memory_gib must be more than 0"),
        ({"bandwidth_gb_s": -1.0}, "bandwidth_gb_s must be more than 0"),
        ({"bf16_tflops": float("inf")}, "bf16_tflops must be a number, not inf"),
        ({"bf16_tflops": "300"}, "bf16_tflops must be a number, not '300'"),
        ({"link_gb_s": True}, "link_gb_s must be a number, not True"),
        ({"usd_per_hour": -0.1}, "usd_per_hour must not be negative"),
        ({"base": "h1000"}, "unknown gpu 'h1000'"),
        ({"base": ["h100"]}, "base must be the name"),
    ],
)
def test_custom_gpu_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        custom_gpu({"memory_gib": 40, "bandwidth_gb_s": 1500, "bf16_tflops": 300, **change})


def test_custom_gpu_names_everything_that_is_missing() -> None:
    with pytest.raises(InputError, match="missing bandwidth_gb_s, bf16_tflops"):
        custom_gpu({"memory_gib": 40})


def test_the_cache_of_a_gpu_is_no_less_than_none() -> None:
    with pytest.raises(InputError, match="l2_mib must not be negative"):
        custom_gpu({"base": "h100", "l2_mib": -1})
    assert custom_gpu({"memory_gib": 40, "bandwidth_gb_s": 1500, "bf16_tflops": 300}).l2_mib == 0


def test_nvfp4_is_priced_at_the_peak_of_4_bits() -> None:
    assert GPUS["b200"].tflops("nvfp4") == GPUS["b200"].tflops("fp4") == 9000
    assert GPUS["h100"].tflops("nvfp4") == GPUS["h100"].bf16_tflops
