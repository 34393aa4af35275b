"""The `lora:` of a class: adapters that its requests ask for."""

from typing import Annotated

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.popular import SharedName, Zipf
from scenarios.schema.strict import Strict


class LoraConfig(Strict):
    """Each request asks for one of `adapters`; the k-th most popular with a probability proportional to 1 / k^zipf.

    A session keeps its adapter. The engine's `max_loras` bounds how many of them a batch uses at once.
    """

    adapters: Annotated[int, Field(ge=1, le=1_000_000), doc("different adapters"), Unit("adapters")]
    zipf: Zipf = 0.0
    name: SharedName = None

    def adapter(self, class_name: str, rank: int) -> str:
        """Return the name of the adapter of this rank, from 1 for the most popular, of a class of this name."""
        return f"{self.name or class_name}-{rank}"
