"""The base of everything read from YAML: unknown keys, wrong types and later changes are errors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from annotated_types import DocInfo, Unit
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class Strict(BaseModel):
    """A frozen pydantic model that forbids unknown keys and converts nothing (an int may stand for a float).

    What a key means stands in its annotation, `Annotated[int, Field(ge=1), doc("GPUs of a replica")]`, with
    `Unit("requests/s")` where the key's name does not say its unit. `Field(description=...)` is something else: what
    an error says that the value must be.
    """

    # Validators are built at the first use, once for the whole scenario rather than once for each model in it.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """pydantic's own, with the keys' meanings and units; `x-allowed` is what errors say that a value must be."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, field in cls.model_fields.items():
            if (expected := properties[name].pop("description", None)) is not None:
                properties[name]["x-allowed"] = expected
            for item in field.metadata:
                if isinstance(item, DocInfo):
                    properties[name]["description"] = item.documentation
                elif isinstance(item, Unit):
                    properties[name]["x-unit"] = item.unit
        return schema


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """Metadata of an annotation: its JSON Schema, made when it is asked for, where pydantic cannot know it."""

    make: Callable[[], dict[str, Any]]

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return self.make()
