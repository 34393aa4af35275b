"""Experts that every token uses, beside the routed ones."""

import pytest

from simulator.timing.profile.kernels import RoutedExperts
from simulator.timing.profile.surface import Curve
from simulator.timing.tables.experts import seen_beside

SHARED = [Curve((1.0, 1024.0), (10.0, 20.0), 0.01), Curve((1.0, 1024.0), (5.0, 5.0), 0.0)]


def routed(us: float) -> RoutedExperts:
    return RoutedExperts(Curve((1.0, 2048.0), (2 * us, 2 * us), 0.0), 0.5, 1, {})


@pytest.mark.parametrize(("engine", "most"), [("vLLM", 256), ("SGLang", 1024), ("TensorRT-LLM", 512)])
def test_shared_experts_are_hidden_in_small_batches_as_far_as_the_routed_ones_last(engine: str, most: int) -> None:
    whole = sum(curve.at(most) for curve in SHARED)
    assert seen_beside(SHARED, routed(100.0), engine).at(most) == 0.0
    assert seen_beside(SHARED, routed(4.0), engine).at(most) == pytest.approx(whole - 4.0, rel=1e-3)
    beyond = sum(curve.at(most + 1) for curve in SHARED)
    assert seen_beside(SHARED, routed(100.0), engine).at(most + 1) == pytest.approx(beyond, rel=1e-3)


def test_other_engines_show_them_whole() -> None:
    seen = seen_beside(SHARED, routed(100.0), "another")
    assert seen.at(8) == pytest.approx(sum(curve.at(8) for curve in SHARED), rel=1e-3)
