"""What a kernel's time must look like whatever was measured: a launch, work that adds up, and the slowest resource.

    us = constant + sum(coefficient x feature) + pnorm(roof, roof, ...),   roof = sum(coefficient x feature)

All coefficients are at least 0, so a step that does more never takes less. Features are counts of a step; a
coefficient is microseconds for one of them. With p = 1 resources are used one after another, with a large p at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.timing.profile.arithmetic import Sum, kernel_us

__all__ = ["Physics", "Sum"]


@dataclass(frozen=True, slots=True)
class Physics:
    """A kernel's time in microseconds. Features may be numbers, or arrays of equal shape."""

    constant_us: float
    terms: Sum = ()
    roofs: tuple[Sum, ...] = ()
    p: float = 4.0

    def us(self, features: Mapping[str, Any]) -> Any:
        """Microseconds for these features: a float for numbers, an array for arrays."""
        return kernel_us(self.constant_us, self.terms, self.roofs, self.p, features)
