"""The base of everything read from YAML: strict models, parts imported later, a name or a mapping."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Annotated, Any, get_args

from annotated_types import DocInfo, Unit
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    TypeAdapter,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from pydantic_core.core_schema import ValidationInfo, definitions_schema, with_info_plain_validator_function

from scenarios.schema.source.hints import refusal
from simulator.errors import InputError

# The base of everything read from YAML: unknown keys, wrong types and later changes are errors.


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


# Parts of the schema that are imported and built when a scenario has them: most scenarios have few of all there
# are.
#
# A module that needs such a part for its types alone writes
#     if TYPE_CHECKING:
#         from scenarios.schema.hardware import EnergyConfig
#     else:
#         EnergyConfig = later("scenarios.schema.hardware:EnergyConfig")


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


# A value that is the name of something built in, or a mapping of its figures: a model, a GPU.


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
