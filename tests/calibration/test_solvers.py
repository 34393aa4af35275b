"""Least squares without scipy give what scipy gives."""

import numpy as np
import pytest

from calibration import surface_fit
from calibration.surface_fit import nnls, nnls_in_numpy, robust_in_numpy, robust_least_squares


@pytest.mark.parametrize("seed", range(20))
def test_coefficients_of_at_least_0(seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = random.uniform(0, 1, (60, 7))
    target = columns @ np.maximum(random.normal(0, 1, 7), 0) + random.normal(0, 0.1, 60)
    expected, rest = nnls(columns, target)
    found, ours = nnls_in_numpy(columns, target)
    assert (found >= 0).all()
    assert ours == pytest.approx(rest, rel=1e-9)
    assert found == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("seed", range(10))
def test_outliers_count_less(seed: int) -> None:
    random = np.random.default_rng(seed)
    columns = random.uniform(0, 1, (80, 4))
    true = np.array([2.0, 0.0, 1.0, 0.5])
    us = (columns @ true + 0.5) * np.exp(random.normal(0, 0.02, 80))
    us[::10] *= 3.0

    def residuals(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.asarray(np.log(np.maximum(columns @ x[:4] + x[4], 1e-9) / us))

    start = np.ones(5)
    expected, least = robust_least_squares(residuals, start, 0.1, ())
    found, cost = robust_in_numpy(residuals, start, 0.1, ())
    assert cost <= least * 1.001
    assert np.exp(residuals(found) - residuals(expected)) == pytest.approx(1.0, rel=0.01)


def test_without_scipy_numpy_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    columns, target = np.eye(3), np.array([1.0, -1.0, 2.0])
    assert surface_fit.nnls(columns, target)[0].tolist() == [1.0, 0.0, 2.0]
    found, _ = surface_fit.robust_least_squares(lambda x: x - target, np.ones(3), 0.1, ())
    assert found == pytest.approx([1.0, 0.0, 2.0], abs=1e-6)
