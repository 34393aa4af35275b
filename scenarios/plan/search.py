"""Search the largest rate that holds: a bracket by doubling, then bisection of the logarithm of the rate.

If both ends of the bracket know their distance from the limit, the next rate is where a line through them crosses it
(regula falsi), kept away from the ends. Latencies bend sharply at the limit, so an excess far from it counts little
more than `_BEND`. The search ends with a rate that holds and one that does not, within `tolerance` of each other.

Both searches end, whatever the probes say. Rates are numbers of five digits, and so are the ends `least` and `most`,
between which there are finitely many. Until there is a bracket, each rate lies beyond the one before, by
`_LEAST_STRIDE` or more, and is an end at the latest: upwards until a probe fails, then downwards, and a probe at an end
is the last one. Between a rate that was too little and one that failed, each rate lies strictly between the two and
becomes one of them. After `_PATIENCE` probes strides are doublings, whatever they foresee, so there are few. Within a
bracket each rate lies strictly between its ends and becomes one of them. Whole numbers likewise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

_EDGE = 0.12  # of the bracket's logarithm: no guess is nearer to its ends
_SLACK = 0.3  # of the tolerance: how far a guess lies beyond the crossing that it foresees
_BEND = 0.3
_FIRST_STRIDE = 1 / 16  # of the logarithm of a whole number
_USUAL_SLOPE = 2.0  # of an excess over the logarithm of what is searched for
_KNOWN = 10.0  # an excess above is that of a run without a value
_DIGITS = 5
_LEAST_STRIDE = 2 * 10.0 ** (1 - _DIGITS)  # of the logarithm: neighbours of five digits differ by less
_PATIENCE = 8  # probes without a bracket: what they foresaw did not come
_LONGEST = 2.0  # factor between two rates on the way to a bracket


class Probed(Protocol):
    """The result of a probe."""

    @property
    def holds(self) -> bool:
        """True if the rate is within the limits."""

    @property
    def excess(self) -> float:
        """The logarithm of how far it is beyond them; below 0 within them."""


P = TypeVar("P", bound=Probed)


@dataclass(slots=True)
class Found(Generic[P]):
    """The bracket that was found, `held` below `failed`; None for an end that was not met. `probes` in order."""

    held: tuple[float, P] | None = None
    failed: tuple[float, P] | None = None
    probes: list[tuple[float, P]] = field(default_factory=list)
    is_settled: bool = False


def largest(
    probe: Callable[[float], P],
    start: float,
    *,
    tolerance: float | Callable[[Sequence[tuple[float, P]]], float] = 0.015,
    step: float = 2.0,
    slope: float | None = None,
    least: float = 1e-9,
    most: float = 1e9,
    go_on: Callable[[], bool] = lambda: True,
    too_little: Callable[[P], bool] = lambda _: False,
) -> Found[P]:
    """Search from `start` on, by factors of `step` up to 2 or as far as two probes foresee, until `least` or `most`.

    `tolerance` may be worked out from the probes so far. `slope` is the expected growth of the excess with the
    logarithm of the rate: with it, the first probe alone foresees the second. `too_little` says that a probe failed for
    want of load: then the rate goes up. `go_on` is asked before each probe; if it says no, the bracket so far is
    returned. `least` and `most` are above 0 and finite, and rounded as all rates are; `step` is above 1.
    """
    found: Found[P] = Found()
    rate, factor, thin = rounded(start), step, 0.0  # thin: the largest rate that was too little
    least, most = rounded(least), rounded(most)
    assert least > 0
    assert most < math.inf
    assert step > 1
    while True:
        if not go_on():
            return found
        done = probe(rate)
        found.probes.append((rate, done))
        if done.holds:
            found.held = (rate, done)
        elif too_little(done):
            thin = rate
        else:
            found.failed = (rate, done)
        if found.held and found.failed:
            return _narrowed(found, probe, tolerance, go_on)
        if thin and found.failed:  # only a rate between the two can hold
            rate = rounded(math.sqrt(thin * found.failed[0]))
            if thin < rate < found.failed[0]:
                continue
            found.is_settled = True
            return found
        up = found.failed is None
        if rate >= most if up else rate <= least:
            found.is_settled = True
            return found
        foreseen = _foreseen(found.probes, _known(tolerance, found.probes), math.log(factor), slope)
        stride = max(_LEAST_STRIDE, foreseen if len(found.probes) < _PATIENCE else math.log(factor))
        rate = rounded(min(rate * math.exp(stride), most) if up else max(rate / math.exp(stride), least))
        factor = min(factor * factor, max(step, _LONGEST))


def _known(tolerance: float | Callable[[Sequence[tuple[float, P]]], float], probes: Sequence[tuple[float, P]]) -> float:
    return tolerance(probes) if callable(tolerance) else tolerance


def _foreseen(probes: list[tuple[float, P]], tolerance: float, usual: float, slope: float | None) -> float:
    """Return a stride in the logarithm: a little beyond where the excess should cross 0, or else `usual`.

    It is foreseen by a line through the last two probes, or by `slope` from the only one.
    """
    (x, one), (y, other) = probes[-2:] if len(probes) > 1 else (probes[-1], probes[-1])
    if max(abs(one.excess), abs(other.excess)) >= _KNOWN:
        return usual
    if x != y:
        slope = (other.excess - one.excess) / (math.log(y) - math.log(x))
    if slope is None or slope <= 0:
        return usual
    return min(max(abs(other.excess) / slope + 0.6 * tolerance, tolerance), math.log(_LONGEST))


def _narrowed(
    found: Found[P],
    probe: Callable[[float], P],
    tolerance: float | Callable[[Sequence[tuple[float, P]]], float],
    go_on: Callable[[], bool],
) -> Found[P]:
    assert found.held is not None
    assert found.failed is not None
    while found.failed[0] / found.held[0] > 1 + (enough := _known(tolerance, found.probes)):
        rate = rounded(_guess(found.held, found.failed, enough))
        if not found.held[0] < rate < found.failed[0]:
            break
        if not go_on():
            return found
        done = probe(rate)
        found.probes.append((rate, done))
        if done.holds:
            found.held = (rate, done)
        else:
            found.failed = (rate, done)
    found.is_settled = True
    return found


def _guess(held: tuple[float, Probed], failed: tuple[float, Probed], tolerance: float) -> float:
    low, high = math.log(held[0]), math.log(failed[0])
    width = high - low
    share = 0.5
    if -_KNOWN < held[1].excess <= 0 < failed[1].excess < _KNOWN:
        below, above = (far / (1 + far / _BEND) for far in (-held[1].excess, failed[1].excess))
        share = below / (above + below)
        # A little beyond the crossing, on the side of the farther end: then both ends come close.
        share += (_SLACK * tolerance / width) * (1 if share < 0.5 else -1)
    return math.exp(low + width * min(max(share, _EDGE), 1 - _EDGE))


def rounded(rate: float) -> float:
    """Round a rate to five digits, so that the written rate is the rate of the run."""
    return float(f"{rate:.{_DIGITS}g}")


def fewest(probe: Callable[[int], P], start: int, most: int, *, slack: float = 0.0) -> tuple[int | None, int]:
    """Find the smallest whole number from 1 to `most` that holds, if more is never worse; and the largest that failed.

    From `start` by doubled steps to either side, farther where the excess says so, then by halves of the logarithm;
    with `slack` it may be more than the smallest by that share. None where `most` fails too.
    """
    at, step, failed = min(max(start, 1), most), _FIRST_STRIDE, 0
    good: int | None = None
    while True:
        done = probe(at)
        far = abs(done.excess) / _USUAL_SLOPE if abs(done.excess) < _KNOWN else 0.0
        stride, step = min(max(step, far), math.log(_LONGEST)), step * 2
        if done.holds:
            good = at
            down = min(math.ceil(at * math.exp(-stride)), at - 1)
        else:
            failed = at
        if good is not None and (failed or good == 1):
            break
        if good is None and at == most:
            return None, failed
        at = max(down, 1) if good is not None else min(math.floor(at * math.exp(stride)) + 1, most)
    while good - failed > max(1, slack * good):
        middle = round(math.sqrt(good * max(failed, 1)))
        middle = min(max(middle, failed + 1), good - 1)
        if probe(middle).holds:
            good = middle
        else:
            failed = middle
    return good, failed
