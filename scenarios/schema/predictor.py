"""The `predictor:` of a workload: what a server is told about how long answers will be."""

from typing import Annotated, Literal

from annotated_types import doc
from pydantic import Field

from scenarios.schema.strict import Strict


class NoPredictor(Strict):
    """No predictions, not even those of a trace: orders that need one take `max_tokens`."""

    kind: Annotated[Literal["none"], doc("no predictions")]


class OraclePredictor(Strict):
    """The true output length."""

    kind: Annotated[Literal["oracle"], doc("true output length")]


class NoisyPredictor(Strict):
    """The true output length times a lognormal factor of mean 1 and coefficient of variation `cv`."""

    kind: Annotated[Literal["noisy"], doc("true output length times a random factor")]
    cv: Annotated[float, Field(gt=0, le=100), doc("coefficient of variation of the factor")]


class ClassMeanPredictor(Strict):
    """The mean output length of the request's class."""

    kind: Annotated[Literal["class_mean"], doc("mean output length of the class")]


Predictor = Annotated[NoPredictor | OraclePredictor | NoisyPredictor | ClassMeanPredictor, Field(discriminator="kind")]
