"""A common step of data-parallel ranks that share experts, by the roofline of one rank.

As `simulator.timing.profile.expert_parallel` has it of measured kernels: each rank computes what is its own, all wait
for the slowest, each computes an even share of the experts for all tokens, and tokens are exchanged before and after.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.timing.cost import StepShape
from simulator.timing.profile.expert_parallel import Exchange, link_of
from simulator.timing.roofline_cost import ACTIVATION_BYTES, Roofline
from simulator.timing.windowed_roofline import WindowedRoofline


@dataclass(frozen=True, slots=True)
class RooflineRanks:
    """Common steps of ranks whose own steps `cost` prices, experts included. Implements GroupCost."""

    cost: Roofline | WindowedRoofline
    exchange: Exchange

    @classmethod
    def of(cls, cost: Roofline | WindowedRoofline, ranks: int, copies: int | None = None) -> "RooflineRanks":
        """Common steps of `ranks`, by the roofline of one; with `copies` tokens go to those of their experts alone."""
        roofline = _plain(cost)
        model, link = roofline.model, link_of(roofline.gpu, ranks * roofline.tensor_parallel)
        return cls(cost, Exchange(ACTIVATION_BYTES * model.hidden, link, copies))

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        roofline = _plain(self.cost)
        model, ranks = roofline.model, len(shapes)
        tokens = [max(shape.tokens, 1) for shape in shapes]  # a dummy batch has one
        own_s = max(
            self.cost.step_s(shape if shape.tokens else StepShape(1, 1)) - roofline.experts_s(count)
            for shape, count in zip(shapes, tokens, strict=True)
        )
        total = sum(tokens)
        exchange_s = 2e-6 * model.moe_layers * self.exchange.us(total, min(tokens))
        reduced_s = roofline.all_reduce_s(max(tokens)) * model.moe_layers / model.sublayers  # the exchange is instead
        return own_s - reduced_s + roofline.experts_s(total, ranks) + exchange_s


def _plain(cost: Roofline | WindowedRoofline) -> Roofline:
    """The roofline without windows, which change nothing of experts and links."""
    return cost if isinstance(cost, Roofline) else cost.cost
