"""The base of everything read from YAML: unknown keys, wrong types and later changes are errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen pydantic model that forbids unknown keys and converts nothing (an int may stand for a float)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
