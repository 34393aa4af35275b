"""Seconds that a layer takes to launch, by its kind."""

from simulator.hardware.models import MODELS
from simulator.timing.launches import layer_launch_s


def test_a_layer_of_more_kernels_takes_longer_to_launch() -> None:
    names = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b")
    found = [layer_launch_s(MODELS[name]) for name in names]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
