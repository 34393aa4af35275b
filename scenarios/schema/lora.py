"""The `lora:` of a class: adapters that its requests ask for."""

from typing import Annotated

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.strict import Strict


class LoraConfig(Strict):
    """Each request asks for one of `adapters`; the k-th most popular with a probability proportional to 1 / k^zipf.

    A session keeps its adapter. The engine's `max_loras` bounds how many of them a batch uses at once.
    """

    adapters: Annotated[int, Field(ge=1, le=1_000_000), doc("different adapters"), Unit("adapters")]
    zipf: Annotated[
        float, Field(ge=0, le=100), doc("exponent of the adapters' popularity; 0: all equally popular, 1: Zipf's law")
    ] = 0.0
    name: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        doc("name of the adapters: classes that give the same share them; null: the class's own"),
    ] = None
