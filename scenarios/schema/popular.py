"""What a class says of things that its requests choose among by popularity: shared texts, adapters."""

from typing import Annotated

from annotated_types import doc
from pydantic import Field

Zipf = Annotated[float, Field(ge=0, le=100), doc("exponent of their popularity; 0: all equally popular, 1: Zipf's law")]
SharedName = Annotated[
    Annotated[str, Field(min_length=1)] | None,
    doc("what their names begin with: classes that give the same share them; null: the class's own name"),
]
