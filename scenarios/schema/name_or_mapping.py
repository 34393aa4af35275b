"""A value that is the name of something built in, or a mapping of its figures: a model, a GPU."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import AfterValidator, Discriminator

from scenarios.schema.source.hints import refusal
from simulator.errors import InputError


def by_shape(name: str, mapping: str) -> Discriminator:
    """Choose the tag `mapping` for mappings, `name` for everything else."""
    return Discriminator(lambda value: mapping if isinstance(value, Mapping) else name)


def refusing(check: Callable[[Any], object]) -> AfterValidator:
    """A check that raises InputError, as a validator."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except InputError as error:
            raise refusal(error.message, error.hint) from None
        return value

    return AfterValidator(validate)
