"""How many of a step's drafts are accepted: data of the workload, which no policy sees.

A law is a list of unconditional rates: `rates[i]` is the share of verify steps in which at least i + 1 drafts are
accepted, so that a step delivers 1 + sum(rates) tokens on average. vLLM's synthetic acceptance has the same form
(`SpeculativeConfig` in vllm/config/speculative.py, 0.33): it walks the positions, accepts position i with probability
rates[i] / rates[i - 1], and stops at the first failure.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final, Protocol

import numpy as np

from simulator.request import Request

_BLOCK_BITS: Final = 6
_BLOCK: Final = 1 << _BLOCK_BITS  # draws of a request that are made together
_BLOCKS_KEPT: Final = 8192


class Acceptance(Protocol):
    """Accepted drafts by request and verify step: the same whatever the policy, the batch, or the way time passes."""

    def enter(self, request: Request) -> None:
        """A request has arrived, about whose verify steps `accepted` will be asked."""

    def accepted(self, row: int, verify_step: int) -> int:
        """Leading drafts that the model would accept, however many were proposed: the caller takes the smaller.

        `row` is the request's place in the workload, `verify_step` the number of its verify steps before this one.
        """


class DrawnAcceptance:
    """Acceptance by a law. Draws come from a counter-based generator: any of them can be asked for at any time.

    `key` names the stream, 64 bits. ValueError for rates that are no law.
    """

    def __init__(self, rates: Sequence[float], key: int) -> None:
        check_rates(rates)
        self.rates = tuple(rates)
        self._ascending = -np.asarray(self.rates, dtype=np.float64)
        self._key = key
        self._blocks: dict[int, list[int]] = {}

    def enter(self, request: Request) -> None:
        pass

    def accepted(self, row: int, verify_step: int) -> int:
        block = self._blocks.get(row << 32 | verify_step >> _BLOCK_BITS)
        if block is None:
            block = self._draw(row, verify_step >> _BLOCK_BITS)
        return block[verify_step & _BLOCK - 1]

    def _draw(self, row: int, number: int) -> list[int]:
        counter = np.array([0, number, 0, 0], dtype=np.uint64)
        key = np.array([self._key, row], dtype=np.uint64)
        uniform = np.random.Generator(np.random.Philox(counter=counter, key=key)).random(_BLOCK)
        block: list[int] = np.searchsorted(self._ascending, -uniform, side="left").tolist()  # rates above the draw
        if len(self._blocks) >= _BLOCKS_KEPT:
            self._blocks.clear()  # those of running requests are drawn again, the same
        self._blocks[row << 32 | number] = block
        return block


class RequestAcceptance:
    """Acceptance that depends on the request: by its own list in turn, else by its class, else as usual."""

    def __init__(self, usual: Acceptance, by_class: Mapping[str, Acceptance]) -> None:
        self._usual = usual
        self._by_class = by_class
        self._listed: dict[int, tuple[int, ...]] = {}
        self._classed: dict[int, Acceptance] = {}

    def enter(self, request: Request) -> None:
        if request.accepted_drafts:
            self._listed[request.row] = request.accepted_drafts
        elif request.class_name in self._by_class:
            self._classed[request.row] = self._by_class[request.class_name]

    def accepted(self, row: int, verify_step: int) -> int:
        listed = self._listed.get(row)
        if listed is not None:
            return listed[verify_step % len(listed)]
        return self._classed.get(row, self._usual).accepted(row, verify_step)


def check_rates(rates: Sequence[float]) -> None:
    """Raise ValueError unless the rates lie within 0 and 1, none above the one before it."""
    for place, rate in enumerate(rates):
        if not (isfinite(rate) and 0 <= rate <= 1):
            raise ValueError(f"a rate is a share from 0 to 1, not {rate:g}")
        if place and rate > rates[place - 1]:
            before = rates[place - 1]
            raise ValueError(f"rates do not grow with the position, and {rate:g} comes after {before:g}")


def least_variance(length: float, drafts: int) -> tuple[float, ...]:
    """The rates of a mean acceptance length with the least variance: vLLM's and SGLang's law for a mean.

    floor(length - 1) drafts are accepted always, one more with the probability that is left. ValueError outside of 1
    to drafts + 1.
    """
    if not 1 <= length <= drafts + 1:
        raise ValueError(f"a mean length with {drafts} drafts lies within 1 and {drafts + 1}, and is not {length:g}")
    accepted = length - 1
    full = int(accepted)
    return (*[1.0] * full, accepted - full, *[0.0] * drafts)[:drafts]


def geometric(length: float, drafts: int) -> tuple[float, ...]:
    """The rates of a mean acceptance length where each draft is accepted with the same probability.

    That probability p solves 1 + p + ... + p^drafts = length, by bisection.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**n for n in range(drafts + 1)) < length else (low, middle)
    return tuple(low**position for position in range(1, drafts + 1))


def of_curve(lengths: Sequence[float]) -> tuple[float, ...]:
    """The rates of mean acceptance lengths with 1, 2, ... drafts; their sum is that of the last length.

    What one more draft adds approximates the rate of its position. Measured lengths do not always give rates that fall:
    neighbours in the wrong order share their mean (isotonic regression, which keeps the sum), and where the longest
    drafts lower the length, the rates of all positions fall by one factor.
    """
    pools: list[tuple[float, int]] = []
    for step in np.diff(lengths, prepend=1.0).tolist():
        pool = (step, 1)
        while pools and pools[-1][0] / pools[-1][1] < pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1])
        pools.append(pool)
    rates = [max(0.0, total / count) for total, count in pools for _ in range(count)]
    factor = (lengths[-1] - 1) / sum(rates) if sum(rates) else 0.0
    return tuple(min(1.0, rate * factor) for rate in rates)
