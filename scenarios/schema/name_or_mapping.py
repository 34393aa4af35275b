"""A value that is the name of something built in, or a mapping of its figures: a model, a GPU."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Tag

from scenarios.schema.source.hints import refusal
from simulator.errors import InputError


def _tag(value: object) -> str:
    return "<mapping>" if isinstance(value, Mapping) else "<name>"


NameOrMapping = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[dict[str, Any], Tag("<mapping>")], Discriminator(_tag)
]


def refusing(check: Callable[[Any], object]) -> AfterValidator:
    """A check that raises InputError, as a validator."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except InputError as error:
            raise refusal(error.message, error.hint) from None
        return value

    return AfterValidator(validate)
