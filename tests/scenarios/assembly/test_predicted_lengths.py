"""Predicted output lengths: right, noisy, by class, none."""

from dataclasses import replace

import numpy as np
import pytest

from scenarios.assembly.predicted_lengths import predict
from scenarios.schema.client import ClassMeanPredictor, NoisyPredictor, NoPredictor, OraclePredictor
from simulator.workload import Ints, Workload

COUNT = 20_000


def workload(names: tuple[str, ...] = ("a", "b"), cap: int = 10**9) -> Workload:
    """Row by row a class; outputs of about 1,000, those of b ten times as long."""
    rng = np.random.default_rng(0)
    classes = np.arange(COUNT) % 2
    outputs = rng.integers(500, 1500, COUNT) * np.where(classes == 1, 10, 1)
    return Workload(
        arrival_s=np.arange(COUNT, dtype=np.float64),
        input_tokens=np.full(COUNT, 10),
        output_tokens=outputs,
        max_tokens=np.full(COUNT, cap),
        priority=np.zeros(COUNT, dtype=np.int64),
        class_index=classes,
        class_names=names,
        predicted_output_tokens=np.full(COUNT, 3),
    )


def predictions(found: Workload) -> Ints:
    assert found.predicted_output_tokens is not None
    assert found.predicted_output_tokens.dtype == np.int64
    return found.predicted_output_tokens


def test_an_oracle_knows() -> None:
    given = workload()
    assert (predictions(predict(given, OraclePredictor(kind="oracle"), 0)) == given.output_tokens).all()
    capped = workload(cap=800)
    expected = np.minimum(given.output_tokens, 800)
    assert (predictions(predict(capped, OraclePredictor(kind="oracle"), 0)) == expected).all()


def test_none_is_none() -> None:
    assert predict(workload(), NoPredictor(kind="none"), 0).predicted_output_tokens is None


def test_the_mean_of_the_class() -> None:
    given = workload()
    found = predictions(predict(given, ClassMeanPredictor(kind="class_mean"), 0))
    for index in (0, 1):
        of_class = given.class_index == index
        assert set(found[of_class].tolist()) == {round(float(given.output_tokens[of_class].mean()))}


@pytest.mark.parametrize("cv", [0.1, 0.5, 2.0])
def test_noise_has_the_spread_asked_for_and_no_bias(cv: float) -> None:
    """Of 20,000 factors the mean is within 5 standard errors of 1, and so is the spread of their logarithms."""
    given = workload()
    factors = predictions(predict(given, NoisyPredictor(kind="noisy", cv=cv), 0)) / given.output_tokens
    sigma = np.sqrt(np.log1p(cv**2))
    assert factors.mean() == pytest.approx(1.0, abs=5 * cv / COUNT**0.5)
    assert np.log(factors).std() == pytest.approx(sigma, rel=5 / (2 * COUNT) ** 0.5 + 0.002)
    assert np.log(factors).mean() == pytest.approx(-(sigma**2) / 2, abs=5 * sigma / COUNT**0.5)


def test_noise_stays_between_one_token_and_the_cap() -> None:
    found = predictions(predict(workload(cap=900), NoisyPredictor(kind="noisy", cv=5.0), 0))
    assert (found.min(), found.max()) == (1, 900)


def test_noise_depends_on_seed_and_class_alone() -> None:
    noisy = NoisyPredictor(kind="noisy", cv=0.5)
    once, again, other = (predictions(predict(workload(), noisy, seed)) for seed in (1, 1, 2))
    assert (once == again).all()
    assert (once != other).any()
    renamed = predictions(predict(workload(("a", "c")), noisy, 1))
    of_a = workload().class_index == 0
    assert (renamed[of_a] == once[of_a]).all()
    assert (renamed[~of_a] != once[~of_a]).any()


def test_nothing_else_changes() -> None:
    given = workload()
    found = predict(given, NoisyPredictor(kind="noisy", cv=1.0), 0)
    assert replace(found, predicted_output_tokens=given.predicted_output_tokens) == given
