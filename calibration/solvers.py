"""Least squares by scipy where it is installed, else in numpy alone, for a device that has nothing more.

Both minimise the same cost over the same bounds; their results agree to what a profile is worth (a test compares
them), not to the last digit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from simulator.timing.profile.surface import Array


def nnls(columns: Array, target: Array) -> tuple[Array, float]:
    """Find coefficients x of at least 0 that bring columns @ x nearest to the target, and the distance that is left."""
    try:
        from scipy.optimize import nnls as solve
    except ImportError:
        return nnls_in_numpy(columns, target)
    x, rest = solve(columns, target)
    return np.asarray(x), float(rest)


def robust_least_squares(
    residuals: Callable[..., Array], start: Array, scale: float, args: tuple[Any, ...]
) -> tuple[Array, float]:
    """Find coefficients of at least 0 with the least sum of soft_l1(residual / scale), from `start` on, and that cost.

    soft_l1(r) = 2 (sqrt(1 + r^2) - 1): quadratic for small residuals, linear for large ones.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        return robust_in_numpy(residuals, start, scale, args)
    found = least_squares(
        residuals, start, bounds=(0.0, np.inf), loss="soft_l1", f_scale=scale, x_scale="jac", args=args, max_nfev=200
    )
    return np.asarray(found.x), float(found.cost)


def nnls_in_numpy(columns: Array, target: Array) -> tuple[Array, float]:
    """Lawson and Hanson's active sets (Solving Least Squares Problems, 1974, chapter 23)."""
    size = columns.shape[1]
    x, free = np.zeros(size), np.zeros(size, dtype=bool)
    tolerance = 1e-10 * max(1e-300, float(np.abs(columns.T @ target).max(initial=0.0)))
    for _ in range(3 * size):
        gradient = columns.T @ (target - columns @ x)
        gradient[free] = -np.inf
        if not (~free).any() or gradient.max() <= tolerance:
            break
        free[int(gradient.argmax())] = True
        while True:
            wanted = np.zeros(size)
            wanted[free] = np.linalg.lstsq(columns[:, free], target, rcond=None)[0]
            below = free & (wanted <= 0.0)
            if not below.any():
                break
            step = float((x[below] / np.maximum(x[below] - wanted[below], 1e-300)).min())
            x = x + step * (wanted - x)
            free &= x > 1e-12 * max(1.0, float(np.abs(x).max()))
            x[~free] = 0.0
        x = wanted
    return x, float(np.linalg.norm(columns @ x - target))


def robust_in_numpy(
    residuals: Callable[..., Array], start: Array, scale: float, args: tuple[Any, ...]
) -> tuple[Array, float]:
    """Levenberg and Marquardt's steps on reweighted squares, cut off at 0."""

    def cost_of(x: Array) -> tuple[float, Array]:
        rest = residuals(x, *args)
        return float(scale**2 * (np.sqrt(1.0 + (rest / scale) ** 2) - 1.0).sum()), rest

    x = np.asarray(start, dtype=np.float64).copy()
    cost, rest = cost_of(x)
    damping = 1e-3
    for _ in range(200):
        slopes = _slopes(residuals, x, rest, args)
        weights = 1.0 / np.sqrt(1.0 + (rest / scale) ** 2)
        gradient = slopes.T @ (weights * rest)
        moving = (x > 0.0) | (gradient < 0.0)
        if not moving.any():
            break
        normal = (slopes * weights[:, None]).T @ slopes
        taken = False
        while damping < 1e12:
            bent = normal + damping * np.diag(np.maximum(np.diag(normal), 1e-12))
            step = np.zeros_like(x)
            step[moving] = -np.linalg.solve(bent[np.ix_(moving, moving)], gradient[moving])
            there = np.maximum(x + step, 0.0)
            new_cost, new_rest = cost_of(there)
            if new_cost < cost:
                taken = True
                break
            damping *= 4.0
        if not taken:
            break
        gained = cost - new_cost
        x, cost, rest, damping = there, new_cost, new_rest, max(damping / 6.0, 1e-12)
        if gained <= 1e-8 * cost:
            break
    return x, cost


def _slopes(residuals: Callable[..., Array], x: Array, rest: Array, args: tuple[Any, ...]) -> Array:
    """Derivatives by differences, a column a coefficient."""
    columns = []
    for place in range(len(x)):
        width = 1.5e-8 * max(1.0, abs(float(x[place])))
        moved = x.copy()
        moved[place] += width
        columns.append((residuals(moved, *args) - rest) / width)
    return np.column_stack(columns)
