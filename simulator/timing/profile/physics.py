"""What a kernel's time must look like whatever was measured: a launch, work that adds up, and the slowest resource.

    us = constant + sum(coefficient x feature) + pnorm(roof, roof, ...),   roof = sum(coefficient x feature)

All coefficients are at least 0, so a step that does more never takes less. Features are counts of a step; a
coefficient is microseconds for one of them. With p = 1 resources are used one after another, with a large p at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Sum = tuple[tuple[str, float], ...]
"""Coefficients by feature, in a fixed order: floats are added in it."""


@dataclass(frozen=True, slots=True)
class Physics:
    """A kernel's time in microseconds. Features may be numbers, or arrays of equal shape."""

    constant_us: float
    terms: Sum = ()
    roofs: tuple[Sum, ...] = ()
    p: float = 4.0

    def us(self, features: Mapping[str, Any]) -> Any:
        """Microseconds for these features: a float for numbers, an array for arrays."""
        total = self.constant_us
        for name, coefficient in self.terms:
            total = total + coefficient * features[name]
        if self.roofs:
            total = total + self._roof(features)
        return total

    def _roof(self, features: Mapping[str, Any]) -> Any:
        if len(self.roofs) == 1:
            return _sum(self.roofs[0], features)
        powers = 0.0
        for roof in self.roofs:
            powers = powers + _sum(roof, features) ** self.p
        return powers ** (1.0 / self.p)


def _sum(coefficients: Sum, features: Mapping[str, Any]) -> Any:
    total = 0.0
    for name, coefficient in coefficients:
        total = total + coefficient * features[name]
    return total
