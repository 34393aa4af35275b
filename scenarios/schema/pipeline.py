"""The `hardware.pipeline_link:` of a scenario: the link between the stages of a pipeline."""

from typing import Annotated

from annotated_types import doc
from pydantic import Field

from scenarios.schema.durations import Time
from scenarios.schema.strict import Strict


class PipelineLink(Strict):
    """The link from each GPU of a stage to its partner of the next; each sends its part of the step's results."""

    bandwidth_gb_s: Annotated[
        Annotated[float, Field(ge=1e-6, le=1e6)] | None,
        doc("bandwidth for each GPU; a port of 400 Gbit/s has 50; null: 60 % of the GPU's own link"),
    ] = None
    latency_s: Annotated[Time, doc("added to each transfer from stage to stage")] = 20e-6
