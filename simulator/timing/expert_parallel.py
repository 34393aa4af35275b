"""A common step of data-parallel ranks that share experts: by a profile of one rank, and by its roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import ACTIVATION_BYTES, NETWORK_GB_S, NETWORK_LATENCY_US, Roofline, WindowedRoofline
from simulator.timing.profile.kernels import Experts, RoutedExperts
from simulator.timing.profile.prices import joint_us, rows_of_group, verify_us
from simulator.timing.profile.profile_cost import ProfileCost

# A common step of data-parallel ranks that share experts, by a profile of one rank.
#
# In each layer a rank computes attention and the dense operators of its own tokens; then all gather all tokens,
# each computes the experts that it holds, an even share, for all of them, and the results are summed where the
# tokens came from (vLLM's default exchange, all-gather and reduce-scatter). SGLang (DeepEP) and TensorRT-LLM (its
# all-to-all over NVLink, where there are more ranks than a token has experts: `select_alltoall_method_type` in
# fused_moe_wide_ep.py) send a token to the ranks of its experts alone. A layer therefore lasts as long as on the
# slowest rank. Ranks whose step runs as a CUDA graph are padded to the largest of them
# (`coordinate_batch_across_dp`).

LINK_EFFICIENCY = 0.6
LINK_LATENCY_US = 20.0
"""The part of a link's nominal bandwidth that collectives reach, and their least time, where neither was measured."""


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """The bandwidth of collectives (NCCL) between two GPUs: GB/s each way, and microseconds at least."""

    gb_s: float
    latency_us: float
    source: str


LINKS = {
    "rtx-pro-6000": MeasuredLink(
        22.2,
        24.2,
        "nccl-tests on RTX PRO 6000 Blackwell Server Edition, PCIe 5, NCCL's defaults: bus bandwidth at 32 MB, and "
        "small messages (github.com/voipmonitor/rtx6kpro at 070506f, hardware/pcie-bandwidth.md)",
    ),
}
"""Measured links, by GPU; none of them was fitted to a served run."""


def link_of(gpu: Gpu, gpus: int = 1) -> MeasuredLink:
    """The GPU's measured link, or one derived from its nominal bandwidth.

    Among more `gpus` than its links connect, what goes to those beyond takes the network between servers.
    """
    derived = MeasuredLink(gpu.link_gb_s * LINK_EFFICIENCY, LINK_LATENCY_US, "derived from the nominal bandwidth")
    link = LINKS.get(gpu.name, derived)
    if gpus <= gpu.link_gpus:
        return link
    beyond = 1.0 - gpu.link_gpus / gpus
    gb_s = 1.0 / ((1.0 - beyond) / link.gb_s + beyond / min(NETWORK_GB_S, link.gb_s))
    words = f"{link.source}; a network of {NETWORK_GB_S:.0f} GB/s a GPU beyond {gpu.link_gpus}"
    return MeasuredLink(gb_s, link.latency_us + NETWORK_LATENCY_US, words)


@dataclass(frozen=True, slots=True)
class Exchange:
    """How ranks exchange tokens: `bytes_per_token` of each over the link.

    All tokens to all ranks, or with `copies` each to so many ranks at most, those of its experts.
    """

    bytes_per_token: int
    link: MeasuredLink
    copies: int | None = None

    def us(self, tokens: int, own: int) -> float:
        """Microseconds until a rank that has `own` tokens holds what it needs of all, or theirs hold its results."""
        moved = tokens - own if self.copies is None else min(tokens - own, self.copies * own)
        return self.link.latency_us + moved * self.bytes_per_token / (self.link.gb_s * 1e3)


@dataclass(frozen=True, slots=True)
class ExpertParallelCost:
    """Common steps of ranks with the same profile, which must have experts. Implements GroupCost."""

    cost: ProfileCost
    experts: Experts | RoutedExperts
    exchange: Exchange

    @classmethod
    def of(
        cls, cost: ProfileCost, hidden: int, gpu: Gpu, ranks: int = 1, copies: int | None = None
    ) -> ExpertParallelCost:
        """Common steps of `ranks` of a model `hidden` wide. InputError where the profile has no experts for them.

        With `copies` tokens go to the ranks of their experts alone (`Exchange`).
        """
        experts = cost.profile.experts
        if experts is None:
            raise InputError(f"the profile {cost.profile.name} has no experts to share")
        refused = experts.refusal(ranks) if isinstance(experts, RoutedExperts) else None
        if refused is not None:
            raise InputError(f"{cost.profile.name} has {refused}")
        link = link_of(gpu, ranks * (cost.profile.tensor_parallel or 1))
        return cls(cost, experts, Exchange(ACTIVATION_BYTES * hidden, link, copies))

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        profile = self.cost.profile
        tokens = [max(shape.tokens, 1) for shape in shapes]  # a dummy batch has one
        largest = max(tokens)
        as_graph = self.cost.options.cuda_graphs and largest <= self.cost.options.max_capture_tokens
        padded = [self.cost.padded(largest)] * len(tokens) if as_graph else tokens
        total = sum(padded)
        layer_us = max(self._layer_us(shape, own) for shape, own in zip(shapes, padded, strict=True))
        layer_us += self._experts_us(total, len(shapes))
        layer_us += 2 * self.exchange.us(total, min(padded))
        rest_us = max(self._rest_us(shape, own) for shape, own in zip(shapes, padded, strict=True))
        host_s = self.cost.options.host_s
        return 1e-6 * (profile.layers * layer_us + rest_us) + (profile.host_s if host_s is None else host_s)

    def _experts_us(self, tokens: int, ranks: int) -> float:
        copies = self.exchange.copies
        if copies is None or copies >= ranks or not isinstance(self.experts, RoutedExperts):
            return self.experts.shared_us(tokens, ranks)
        return self.experts.reached_us(tokens, ranks, copies)

    def _layer_us(self, shape: StepShape, tokens: int) -> float:
        profile = self.cost.profile
        us = sum(curve.at(tokens) for curve in profile.layer_curves.values())
        if shape.draft_tokens:
            us += verify_us(profile.attention, shape, rows_of_group(profile))
        elif shape.prefill_tokens:
            us += joint_us(profile.attention, shape)
        elif shape.decode_seqs:
            us += profile.attention.decode.us(shape.decode_seqs, shape.decode_context / shape.decode_seqs)
        if shape.tokens and profile.skew is not None and self.cost.options.skew:
            us += profile.skew.us(shape)
        return us

    def _rest_us(self, shape: StepShape, tokens: int) -> float:
        profile = self.cost.profile
        rows = max(shape.decode_seqs + shape.prefill_seqs + shape.draft_tokens, 1)
        us = sum(curve.at(tokens) for curve in profile.step_curves.values())
        if profile.all_reduce is not None and self.cost.options.all_reduce:
            us += profile.all_reduce.at(tokens) / 2  # of a layer's two, that of attention: the other is the exchange
        us += sum(curve.at(rows) for curve in profile.row_curves.values())
        given_s = self.cost.options.host_per_seq_s
        return us + 1e6 * (profile.host_per_seq_s if given_s is None else given_s) * rows


# A common step of data-parallel ranks that share experts, by the roofline of one rank.
#
# As above of measured kernels: each rank computes what is its own, all wait for
# the slowest, each computes an even share of the experts for all tokens, and tokens are exchanged before and after.


@dataclass(frozen=True, slots=True)
class RooflineRanks:
    """Common steps of ranks whose own steps `cost` prices, experts included. Implements GroupCost."""

    cost: Roofline | WindowedRoofline
    exchange: Exchange

    @classmethod
    def of(cls, cost: Roofline | WindowedRoofline, ranks: int, copies: int | None = None) -> RooflineRanks:
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
