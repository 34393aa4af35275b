"""The experts of a mixture: their cost depends on the tokens, and on how many experts these activate."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.timing.profile.step import LookupTable
from simulator.timing.profile.surface import Curve


@dataclass(frozen=True, slots=True)
class Experts(LookupTable):
    """A layer's routed experts over (tokens, activated experts), of which each token asks for `top_k`."""

    counts = ("tokens", "activated")

    experts: int
    top_k: int

    def activated(self, tokens: float) -> float:
        """Experts that so many tokens ask for when each chooses evenly: E (1 - (1 - k / E)^tokens)."""
        missed: float = (1.0 - self.top_k / self.experts) ** tokens
        return self.experts * (1.0 - missed)

    def us(self, tokens: float) -> float:
        place = (tokens, self.activated(tokens))
        return self.lookup.us(place, place)

    def shared_us(self, tokens: float, ranks: int) -> float:
        """Microseconds of a rank's even share of the experts, for its share of the (token, expert) pairs."""
        place = (tokens / ranks, self.activated(tokens) / ranks)
        return self.lookup.us(place, place)


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """A layer's routed experts over tokens, the mean of all layers: a `share` of them has experts.

    `alone` are the times of experts that `width_ranks` GPUs divide by their width; `shared` those of a GPU that holds
    whole experts, one part in so many of them, over the tokens of all these GPUs.
    """

    alone: Curve
    share: float
    width_ranks: int
    shared: Mapping[int, Curve]

    def us(self, tokens: float) -> float:
        return self.share * self.alone.at(tokens)

    def shared_us(self, tokens: float, ranks: int) -> float:
        """Microseconds on a GPU where all GPUs of `ranks` data-parallel ranks share the experts.

        A number of GPUs that does not divide the experts, or is beyond those that were asked of the tables, is as the
        next smaller one with as many tokens for each GPU: that holds an expert or a few more.
        """
        gpus = ranks * self.width_ranks
        known = self._known(gpus)
        assert known is not None  # `refusal` was asked
        return self.share * self.shared[known].at(tokens * known / gpus if known != gpus else tokens)

    def reached_us(self, tokens: float, ranks: int, copies: int) -> float:
        """As `shared_us`, where a token reaches only the ranks of its `copies` experts, drawn evenly.

        A further token costs a GPU with few of the experts as much as if it had none: so much is not due. That slope
        holds some work of experts too, so a GPU takes at least the time of the tokens that reach it.
        """
        fewest = self.shared[max(self.shared)]
        unreached = tokens * (1.0 - 1.0 / ranks) ** copies
        left_us = self.shared_us(tokens, ranks) - self.share * unreached * fewest.us_beyond
        return max(left_us, self.shared_us(tokens - unreached, ranks))

    def refusal(self, ranks: int) -> str | None:
        """Why so many data-parallel ranks cannot share the experts; None where they can."""
        gpus = ranks * self.width_ranks
        if self._known(gpus) is not None:
            return None
        there = ", ".join(map(str, self.shared)) or "none"
        return f"no times of experts that {gpus} GPUs share (measured or near enough: {there})"

    def _known(self, gpus: int) -> int | None:
        """That number of GPUs, or the next smaller one whose times are known."""
        return gpus if gpus in self.shared else max((each for each in self.shared if each < gpus), default=None)


def expert_features(tokens: Any, activated: Any) -> dict[str, Any]:
    """Counts of a layer's experts, as numbers or arrays."""
    return {"tokens": tokens, "activated": activated}
