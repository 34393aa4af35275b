"""The experts of a mixture: their cost depends on the tokens, and on how many experts these activate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.timing.profile.surface import Surface


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's routed experts over (tokens, activated experts), of which each token asks for `top_k`."""

    surface: Surface
    experts: int
    top_k: int

    def activated(self, tokens: float) -> float:
        """Experts that so many tokens ask for when each chooses evenly: E (1 - (1 - k / E)^tokens)."""
        missed: float = (1.0 - self.top_k / self.experts) ** tokens
        return self.experts * (1.0 - missed)

    def us(self, tokens: float) -> float:
        """Microseconds of a layer."""
        activated = self.activated(tokens)
        return self.surface.us((tokens, activated), expert_features(tokens, activated))


def expert_features(tokens: Any, activated: Any) -> dict[str, Any]:
    """Counts of a layer's experts, as numbers or arrays."""
    return {"tokens": tokens, "activated": activated}
