"""Figures of a trace: load over time, lengths and their tails, tokens that a prefix cache could reuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scenarios.traces.read import SHORTEST_S
from simulator.request import PromptContent
from simulator.workload import Floats, Ints, Workload

PERCENTS = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
TAIL_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class ArrivalFacts:
    """The load over time. None where there are too few requests to tell.

    `rate` is (requests - 1) / duration, `interarrival_cv` the standard deviation of the gaps over their mean, and an
    index of dispersion (`idc_*`) the variance over the mean of the counts in the trace's whole windows of that many
    seconds: 1 for a Poisson process. `peak_minute` is the largest count in any 60 s counted from the first arrival.
    """

    duration_s: float
    rate: float | None
    interarrival_cv: float | None
    idc_1s: float | None
    idc_10s: float | None
    idc_60s: float | None
    max_gap_s: float
    zero_gap_share: float | None
    peak_minute: int


@dataclass(frozen=True, slots=True)
class LengthFacts:
    """A distribution of token counts. `percentiles` (linear) belong to PERCENTS.

    `hill_alpha` is Hill's estimate of the Pareto tail's index from the largest 5 % of rows, above `hill_threshold`
    (B. M. Hill, Annals of Statistics 3, 1975): below 2 the variance does not settle. `tail_token_share` is the share
    of all tokens in those rows. Both are None for fewer than 20 rows, alpha also where the tail is flat.
    """

    min: int
    max: int
    mean: float
    cv: float
    percentiles: tuple[float, ...]
    hill_alpha: float | None
    hill_threshold: int | None
    tail_token_share: float | None


@dataclass(frozen=True, slots=True)
class PrefixFacts:
    """What a prefix cache that forgets nothing could reuse, from the block hashes; only earlier requests count.

    `token_hit_ratio` counts prompt tokens in leading blocks that were seen before, `hit_share_quartiles` is that
    share per request, `top_block_requests` how many requests hold the block that most requests hold.
    """

    requests: int
    blocks: int
    distinct_blocks: int
    distinct_reused_share: float
    block_hit_ratio: float
    token_hit_ratio: float
    hit_share_quartiles: tuple[float, float, float]
    requests_without_hit: int
    top_block_requests: int


def arrival_facts(arrival_s: Floats) -> ArrivalFacts:
    """The facts about sorted arrivals, in seconds from the first."""
    arrival_s = arrival_s - arrival_s[0]
    gaps = np.diff(arrival_s)
    duration = float(arrival_s[-1])
    moving = duration >= SHORTEST_S
    return ArrivalFacts(
        duration_s=duration,
        rate=len(gaps) / duration if moving else None,
        interarrival_cv=float(gaps.std() / gaps.mean()) if moving else None,
        idc_1s=_dispersion(arrival_s, 1.0),
        idc_10s=_dispersion(arrival_s, 10.0),
        idc_60s=_dispersion(arrival_s, 60.0),
        max_gap_s=float(gaps.max()) if len(gaps) else 0.0,
        zero_gap_share=float(np.mean(gaps == 0)) if len(gaps) else None,
        peak_minute=int(_counts(arrival_s, 60.0).max()),
    )


def length_facts(lengths: Ints) -> LengthFacts:
    """The facts about token counts of 1 and more."""
    mean = float(lengths.mean())
    alpha = threshold = share = None
    tail = int(TAIL_SHARE * len(lengths))
    if tail:
        descending = np.sort(lengths)[::-1]
        threshold = int(descending[tail])
        excess = float(np.log(descending[:tail] / threshold).mean())
        alpha = 1.0 / excess if excess > 0 else None
        share = float(descending[:tail].sum() / lengths.sum())
    return LengthFacts(
        min=int(lengths.min()),
        max=int(lengths.max()),
        mean=mean,
        cv=float(lengths.std()) / mean,
        percentiles=tuple(np.percentile(lengths, PERCENTS).tolist()),
        hill_alpha=alpha,
        hill_threshold=threshold,
        tail_token_share=share,
    )


def prefix_facts(workload: Workload) -> PrefixFacts | None:
    """The hits that the block hashes promise a prefix cache; None without hashes."""
    rows = [
        (length, content)
        for length, content in zip(workload.input_tokens.tolist(), workload.content or (), strict=False)
        if content is not None and content.block_hashes
    ]
    if not rows:
        return None
    holders: dict[int, int] = {}
    hit_blocks = hit_tokens = without_hit = 0
    shares = []
    for length, content in rows:
        hits = _leading_hits(content, holders)
        tokens = min(hits * content.hash_block_size, length)
        hit_blocks += hits
        hit_tokens += tokens
        without_hit += hits == 0
        shares.append(tokens / length)
        for block in dict.fromkeys(content.block_hashes):
            holders[block] = holders.get(block, 0) + 1
    blocks = sum(len(content.block_hashes) for _, content in rows)
    low, middle, high = np.percentile(shares, (25, 50, 75)).tolist()
    return PrefixFacts(
        requests=len(rows),
        blocks=blocks,
        distinct_blocks=len(holders),
        distinct_reused_share=sum(number > 1 for number in holders.values()) / len(holders),
        block_hit_ratio=hit_blocks / blocks,
        token_hit_ratio=hit_tokens / sum(length for length, _ in rows),
        hit_share_quartiles=(low, middle, high),
        requests_without_hit=without_hit,
        top_block_requests=max(holders.values()),
    )


def _leading_hits(content: PromptContent, seen: dict[int, int]) -> int:
    hits = 0
    for block in content.block_hashes:
        if block not in seen:
            break
        hits += 1
    return hits


def _counts(arrival_s: Floats, window_s: float) -> Ints:
    """Arrivals in each window that holds any part of the trace. Windows without arrivals cost nothing."""
    _, counts = np.unique(np.floor(arrival_s / window_s), return_counts=True)
    return counts


def _dispersion(arrival_s: Floats, window_s: float) -> float | None:
    """Variance over mean of the counts in whole windows; None for fewer than two of them."""
    windows = int(arrival_s[-1] // window_s)
    if windows < 2:
        return None
    counts = _counts(arrival_s[arrival_s < windows * window_s], window_s)
    mean = counts.sum() / windows
    variance = float((counts.astype(np.float64) ** 2).sum() / windows - mean**2)
    return float(variance / mean)


def _ranks(values: Ints) -> Floats:
    """Ranks from 0; equals share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends: NDArray[np.int64] = np.cumsum(counts)
    ranks: Floats = (ends - (counts + 1) / 2)[place]
    return ranks


def correlations(a: Ints, b: Ints) -> tuple[float | None, float | None]:
    """Pearson's and Spearman's; None for fewer than two values, or where all are equal."""
    return _pearson(a.astype(np.float64), b.astype(np.float64)), _pearson(_ranks(a), _ranks(b))


def _pearson(a: Floats, b: Floats) -> float | None:
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return float(np.corrcoef(a, b)[0, 1])
