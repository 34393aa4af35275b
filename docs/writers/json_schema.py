"""The scenario as JSON Schema, for editors and other tools: `library/scenario.schema.json`.

`make pages PAGES=schema` writes it again; a test compares the two.
It accepts all that `load` accepts, and refuses unknown keys, wrong types and values out of range. It knows nothing
of what only goes wrong together, as a `p99` below its `median`.
"""

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from scenarios.schema.allowed import Schema
from scenarios.schema.scenario import Scenario

FILE = Path(__file__).parents[2] / "scenarios" / "library" / "scenario.schema.json"
"""Where the schema is shipped: beside the scenarios, so that their first line can name it."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Untitled(GenerateJsonSchema):
    """A field's title would repeat its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def scenario_schema() -> Schema:
    """The JSON Schema of a scenario."""
    made = _cleaned(Scenario.model_json_schema(schema_generator=_Untitled))
    assert isinstance(made, dict)
    made["required"] = [key for key in made["required"] if key != "name"]  # `load` takes the file's
    return {"$schema": DIALECT, "title": "batchlab scenario", **made}


def _cleaned(schema: Any) -> Any:
    """Without the titles of classes and OpenAPI's discriminators; docstrings in one line.

    A whole number is written as one: which of 1 and 1.0 stands in a type depends on the order of imports.
    """
    if isinstance(schema, float) and schema.is_integer():
        return int(schema)
    if isinstance(schema, list):
        return [_cleaned(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: value
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "discriminator" and "propertyName" in value)
    }
    if isinstance(text := kept.get("description"), str):
        kept["description"] = " ".join(text.split())
    return {key: _cleaned(value) for key, value in kept.items()}


def text() -> str:
    """The file's text."""
    return json.dumps(scenario_schema(), indent=1, ensure_ascii=False) + "\n"
