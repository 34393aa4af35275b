"""Records compared to the last bit: the product's own check does it."""

from __future__ import annotations

from scenarios.check.differences import differences

__all__ = ["differences"]
