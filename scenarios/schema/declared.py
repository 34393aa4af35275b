"""The `engine:` of any built-in policy: a model put together from what all policies and queue orders declare.

It imports all of them, so most runs do without: `scenarios.schema.engine`.
"""

from collections.abc import Iterable, Mapping
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args, get_origin

from annotated_types import DocInfo
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    create_model,
    model_validator,
)

from scenarios.schema.allowed import with_known
from scenarios.schema.engine import Engine, NamedEngine, built_in
from scenarios.schema.source.hints import as_number
from simulator.parameters import MISSING, Parameter
from simulator.policies import DEFAULT_POLICY, named_policies, policy_class, policy_parameters
from simulator.queues import QUEUES


def _declared() -> dict[str, list[Parameter]]:
    """Every parameter of a built-in policy or of an order that can be chosen, with each of its declarations.

    Those of the default policy come first.
    """
    names = sorted(named_policies(), key=lambda name: name != DEFAULT_POLICY)
    owners = [policy_parameters(policy_class(name)) for name in names]
    owners += [kind.parameters for kind in QUEUES.values() if not kind.is_internal]
    found: dict[str, list[Parameter]] = {}
    for owner in owners:
        for key, parameter in owner.items():
            found.setdefault(key, []).append(parameter)
    return found


DECLARED: Mapping[str, list[Parameter]] = _declared()


def _field(declared: list[Parameter]) -> Any:
    """A field of the model that takes what any of the declarations takes; the policy's own limits come after it."""
    words = tuple(dict.fromkeys(word for parameter in declared for word in parameter.words))
    kinds = list(dict.fromkeys(_without_doc(parameter.annotation) for parameter in declared))
    kind: Any = kinds[0]
    if len(kinds) > 1:
        kind = Literal[words] if words and all(get_origin(each) is Literal for each in kinds) else reduce(or_, kinds)
    if words:
        kind = Annotated[kind, BeforeValidator(partial(_as_word, words))]
    defaults = [parameter.default for parameter in declared]
    default = defaults[0] if all(other == defaults[0] for other in defaults) else None
    default = None if default is MISSING else default  # its policy says that it must be given
    return kind, Field(default=default)


def _without_doc(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    inner, *metadata = get_args(annotation)
    limits = [item for item in metadata if not isinstance(item, DocInfo)]
    return reduce(lambda kind, limit: Annotated[kind, limit], limits, inner)


def _as_word(words: Iterable[str], value: object) -> object:
    """The word that is meant: YAML takes 0.20 without quotes for a number."""
    return next((word for word in words if as_number(word) == value), value) if isinstance(value, float) else value


class _Closed(Engine):
    model_config = ConfigDict(extra="forbid")

    policy: Annotated[str, AfterValidator(built_in)] = DEFAULT_POLICY

    @model_validator(mode="wrap")
    @classmethod
    def _of_a_known_release(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Take the nearest known release for one that is not, and remember which it was; a patch is its release."""
        if not isinstance(data, Mapping):
            return handler(data)
        known, asked = with_known(data)
        found = handler(known)
        found._asked_release = asked
        return found


if TYPE_CHECKING:

    class BuiltInEngine(_Closed):
        """The engine of a built-in policy: a field for every parameter that a policy or an order declares."""
else:
    BuiltInEngine = create_model(
        "BuiltInEngine",
        __base__=_Closed,
        __module__=__name__,
        __doc__="The engine of a built-in policy: a field for every parameter that a policy or an order declares.",
        **{key: _field(declared) for key, declared in DECLARED.items()},
    )


def _named(engine: BuiltInEngine) -> NamedEngine:
    keys = engine.model_fields_set
    found = NamedEngine.model_validate({key: value for key, value in engine.__dict__.items() if key in keys})
    found._asked_release = engine.asked_release
    return found


AnyNamedEngine = Annotated[BuiltInEngine, AfterValidator(_named)]
