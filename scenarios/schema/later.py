"""Parts of the schema that are imported and built when a scenario has them: most scenarios have few of all there are.

A module that needs such a part for its types alone writes

    if TYPE_CHECKING:
        from scenarios.schema.energy import EnergyConfig
    else:
        EnergyConfig = later("scenarios.schema.energy:EnergyConfig")
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Annotated, Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import ValidationInfo, definitions_schema, with_info_plain_validator_function


class Later:
    """Metadata of `Any`: the value is of the type at `place`, `module:NAME`, which is imported when there is a value.

    The type is a model or a union of models, which have a configuration of their own.

    Of a union, `choose` may say the place of the arm that a value is of, which is then tried alone. None for a value
    that it does not know. What no arm accepts is told by the whole union: the errors are the same.
    """

    def __init__(self, place: str, choose: Callable[[object], str | None] | None = None) -> None:
        self._place = place
        self._choose = choose

    @property
    def whole(self) -> Any:
        """The type."""
        return _at(self._place)

    def _validate(self, value: object, info: ValidationInfo) -> Any:
        arm = None if self._choose is None else self._choose(value)
        if arm is not None:
            try:
                return _adapter(arm).validate_python(value, context=info.context)
            except ValidationError:
                pass
        return _adapter(self._place).validate_python(value, context=info.context)

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return with_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Only inside another type does a model keep the name under which a JSON Schema has it once, among `$defs`.
        listed: Any = TypeAdapter(list[self.whole]).core_schema  # type: ignore[name-defined] # found at run time
        if listed["type"] == "definitions":
            return handler({**listed, "schema": listed["schema"]["items_schema"]})
        return handler(definitions_schema(listed["items_schema"], []))


def later(place: str, choose: Callable[[object], str | None] | None = None) -> Any:
    """The annotation of a value whose type is imported when there is one."""
    return Annotated[Any, Later(place, choose)]


def by_word(key: str, places: dict[str, str]) -> Callable[[object], str | None]:
    """Choose the arm of a union by a key of the mapping, or of the model, that is given."""

    def choose(value: object) -> str | None:
        word = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
        return places.get(word) if isinstance(word, str) else None

    return choose


def at_hand(annotated: Any) -> tuple[Any, ...]:
    """The type and the metadata of an annotation that has some; the type is imported where it was left for later."""
    inner, *metadata = get_args(annotated)
    return next((item.whole for item in metadata if isinstance(item, Later)), inner), *metadata


def annotation_of(field: FieldInfo) -> Any:
    """The type of a field, imported where it was left for later."""
    return next((item.whole for item in field.metadata if isinstance(item, Later)), field.annotation)


@cache
def _at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@cache
def _adapter(place: str) -> TypeAdapter[Any]:
    return TypeAdapter(_at(place))
