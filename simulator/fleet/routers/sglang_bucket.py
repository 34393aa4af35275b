"""SGLang's bucket policy: prompts of like length go to the same replica, while the characters sent there are equal.

The rule is that of sglang-router 0.3.2 (sgl-model-gateway/src/policies/bucket.rs, 092fb045), whose recorded decisions
are the test. There it serves prefill alone (`--prefill-policy bucket`), and the decoding side has the main policy, by
default `cache_aware`: so it has here, where prefill and decode are apart. Lengths are those of the prompt's text; here
a token has four characters. The boundaries are looked at every `bucket_adjust_interval_secs`, counted from time zero,
at which the router starts, and moved where the characters of a bucket have more than doubled or halved since they were
moved last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.prompt_table import CHARACTERS
from simulator.fleet.router import are_unequal
from simulator.fleet.routers.sglang_cache_aware import SglangCacheAware
from simulator.parameters import CountOrZero, check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas, Router
    from simulator.request import ArrivingRequest

_LONGEST = 4096  # characters, over which the first boundaries are spread evenly (`l_max`)


@dataclass(slots=True)
class SglangBucket:
    """Give a prompt to the replica in whose range its length lies.

    While the characters sent to the replicas differ by more than `balance_abs_threshold` and by more than the factor
    `balance_rel_threshold`, it goes to the one with the fewest, the first of equals. Characters count for an interval.
    """

    reads_loads: ClassVar = False

    balance_abs_threshold: Annotated[
        CountOrZero, Unit("characters"), doc("largest difference of characters sent that the router accepts")
    ] = 64
    balance_rel_threshold: Annotated[float, Ge(1), Le(1e9), doc("largest ratio of them that the router accepts")] = 1.5
    bucket_adjust_interval_secs: Annotated[
        int, Ge(1), Le(10**9), Unit("s"), doc("seconds between two looks at the boundaries")
    ] = 5
    _ends: list[int] = field(init=False, repr=False, default_factory=list)
    _sent: dict[int, int] = field(init=False, repr=False, default_factory=dict)  # characters by replica
    _recent: deque[tuple[float, int, int]] = field(init=False, repr=False, default_factory=deque)
    _share: int = field(init=False, repr=False, default=0)
    _looks: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        check_parameters(self)

    def for_decode(self) -> Router:
        """The router of the side that decodes."""
        return SglangCacheAware()

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        numbers = list(replicas.by_number)
        if list(self._sent) != numbers:
            self._sent = dict.fromkeys(numbers, 0)
            self._ends = [(place + 1) * (_LONGEST // len(numbers)) - 1 for place in range(len(numbers) - 1)]
        looks = int(request.arrival_s // self.bucket_adjust_interval_secs)
        if looks > self._looks:
            self._looks = looks
            self._adjust()
        length = CHARACTERS * request.input_tokens
        number = self._number(length, numbers)
        self._note(request.arrival_s, length, number)
        return replicas.by_number[number]

    def _number(self, length: int, numbers: Sequence[int]) -> int:
        most, fewest = max(self._sent.values()), min(self._sent.values())
        if are_unequal(fewest, most, self.balance_abs_threshold, self.balance_rel_threshold):
            return min(numbers, key=self._sent.__getitem__)
        return numbers[bisect_left(self._ends, length)]

    def _note(self, now_s: float, length: int, number: int) -> None:
        """So many characters go to a replica; what was sent more than an interval ago no longer counts."""
        self._sent[number] += length
        while self._recent and now_s - self._recent[0][0] > self.bucket_adjust_interval_secs:
            _, gone, sender = self._recent.popleft()
            self._sent[sender] = max(0, self._sent.get(sender, 0) - gone)
        self._recent.append((now_s, length, number))

    def _adjust(self) -> None:
        """Move the boundaries, so that each bucket has an equal share of the characters."""
        lengths = sorted([length for _, length, _ in self._recent])
        if not lengths:
            return
        share = sum(lengths) // len(self._sent)
        if self._share and share <= 2 * self._share and self._share <= 2 * share:
            return
        self._share = share
        self._ends = boundaries(lengths, share, len(self._sent))


def boundaries(lengths: Sequence[int], share: int, buckets: int) -> list[int]:
    """The longest length of each bucket but the last, which has no end (`adjust_boundary`). `lengths` rise."""
    ends: list[int] = []
    begin = place = 0
    for _ in range(buckets - 1):
        total, end = 0, begin + share
        for length in lengths[place:]:
            total += length
            place += 1
            if total >= share:
                end = length if length > begin else end
                break
        ends.append(end)
        begin = end + 1
    return ends
