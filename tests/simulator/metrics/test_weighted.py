"""Weighted statistics are those of the samples written out, to the last bit for percentiles."""

import math
import tracemalloc
from collections.abc import Iterator, Sequence
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simulator.metrics import weighted
from simulator.metrics.weighted import describe, weighted_sum
from simulator.results.records import Floats, Ints

Q = (0.0, 1.0, 33.3, 50.0, 90.0, 95.0, 99.0, 100.0)

anything = st.floats(-1e140, 1e140)  # the variance has to be a float too
close = st.sampled_from([np.nextafter(0.01, side) for side in (0, 1)] + [0.01, 0.0, -0.0, 5e-324, -5e-324, 1e3])
samples = st.lists(st.tuples(anything | close, st.integers(0, 40)), min_size=1, max_size=60)


def weighted_percentiles(values: Floats, weights: Ints, q: Sequence[float]) -> tuple[float, ...] | None:
    found = describe(lambda: [(values, weights)], q)
    return None if found is None else found.percentiles


def arrays(pairs: list[tuple[float, int]]) -> tuple[Floats, Ints]:
    values, weights = zip(*pairs, strict=True)
    return np.array(values, dtype=np.float64), np.array(weights, dtype=np.int64)


@given(samples, st.lists(st.floats(0, 100), max_size=5))
def test_percentiles_are_numpys_of_the_written_out_samples(pairs: list[tuple[float, int]], more: list[float]) -> None:
    values, weights = arrays(pairs)
    if weights.sum() == 0:
        assert weighted_percentiles(values, weights, Q) is None
        return
    expected = np.percentile(np.repeat(values, weights), (*Q, *more))
    assert weighted_percentiles(values, weights, (*Q, *more)) == tuple(expected)


@given(samples, st.integers(1, 7), st.integers(1, 5), st.integers(0, 20))
def test_narrowing_and_chunks_change_nothing(
    pairs: list[tuple[float, int]], bits: int, chunk: int, at_once: int
) -> None:
    """With few buckets and hardly any sorting, the search has to go through many rounds to find the same."""
    values, weights = arrays(pairs)

    def chunks() -> Iterator[tuple[Floats, Ints]]:
        for i in range(0, len(values), chunk):
            yield values[i : i + chunk], weights[i : i + chunk]

    with patch.object(weighted, "BUCKET_BITS", bits), patch.object(weighted, "SORTED_AT_ONCE", at_once):
        found = describe(chunks, Q)
    if found is None:
        assert weights.sum() == 0
    else:
        assert found.percentiles == tuple(np.percentile(np.repeat(values, weights), Q))


@given(st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 40)), min_size=1, max_size=60))
def test_moments(pairs: list[tuple[float, int]]) -> None:
    values, weights = arrays(pairs)
    found = describe(lambda: [(values, weights)], ())
    if found is not None:
        written_out = np.repeat(values, weights)
        assert found.count == len(written_out)
        assert math.isclose(found.mean, float(written_out.mean()), rel_tol=1e-12)
        assert math.isclose(found.std, float(written_out.std()), rel_tol=1e-9, abs_tol=1e-12)


def test_huge_weights_are_exact() -> None:
    """More samples than could be written out: the middle falls between the second and the third value."""
    values, weights = np.array([3.0, 1.0, 2.0, 4.0]), np.full(4, 10**12, dtype=np.int64)
    assert weighted_percentiles(values, weights, (0, 25, 50, 75, 100)) == (1.0, 1.75, 2.5, 3.25, 4.0)


def test_nothing_at_all() -> None:
    assert describe(list, Q) is None


def test_real_amounts_take_little_memory() -> None:
    """A million and a half entries, so that the search narrows as it does in earnest."""
    rng = np.random.default_rng(0)
    values, weights = rng.gamma(4, 0.005, 1_500_000), rng.integers(0, 4, 1_500_000)
    values[::3] = 0.02  # a value that alone is too much to sort
    chunks = [(values[i : i + 100_000], weights[i : i + 100_000]) for i in range(0, len(values), 100_000)]
    tracemalloc.start()
    found = describe(lambda: chunks, Q)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20
    assert found is not None
    assert found.percentiles == tuple(np.percentile(np.repeat(values, weights), Q))


def test_weighted_sum() -> None:
    assert weighted_sum(np.array([0.5, 2.0]), np.array([4, 3])) == 8.0


@given(samples, st.data(), st.integers(1, 7), st.integers(0, 20))
def test_negative_weights_take_samples_back(
    pairs: list[tuple[float, int]], data: st.DataObject, bits: int, at_once: int
) -> None:
    """In entries of their own, with the same value: the rest is as if they had never been there."""
    values, weights = arrays(pairs)
    back = np.array([data.draw(st.integers(0, weight)) for weight in weights.tolist()])
    order = np.array(data.draw(st.permutations(range(2 * len(values)))))
    more, taken = np.concatenate([values, values])[order], np.concatenate([weights, -back])[order]
    with patch.object(weighted, "BUCKET_BITS", bits), patch.object(weighted, "SORTED_AT_ONCE", at_once):
        found = describe(lambda: [(more, taken)], Q)
    expected = describe(lambda: [(values, weights - back)], Q)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.count, found.percentiles) == (expected.count, expected.percentiles)
