"""The `predictor:` of a workload: what a server is told about how long answers will be."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scenarios.schema.strict import Strict


class NoPredictor(Strict):
    """No predictions, not even those of a trace: orders that need one take `max_tokens`."""

    kind: Literal["none"]


class OraclePredictor(Strict):
    """The true output length."""

    kind: Literal["oracle"]


class NoisyPredictor(Strict):
    """The true output length times a lognormal factor of mean 1 and coefficient of variation `cv`."""

    kind: Literal["noisy"]
    cv: Annotated[float, Field(gt=0, le=100)]


class ClassMeanPredictor(Strict):
    """The mean output length of the request's class."""

    kind: Literal["class_mean"]


Predictor = Annotated[NoPredictor | OraclePredictor | NoisyPredictor | ClassMeanPredictor, Field(discriminator="kind")]
