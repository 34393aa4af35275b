"""Parameters read from their declarations: limits, words, defaults, descriptions; and what breaks them."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt, doc
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, TypeAdapter, ValidationError

from simulator.parameters import MISSING, Parameter, check_arguments, check_parameters, parameters_of
from simulator.policies import built_in_policies, load_policy, policy_class, policy_parameters
from simulator.queues import QUEUES

Words = Annotated[Literal["one", "two"], doc("a choice")]


@dataclass(frozen=True, slots=True)
class Example:
    must: int
    count: Annotated[int, Ge(1), Le(10**9), doc("how many")] = 3
    share: Annotated[float, Gt(0), Lt(1)] | None = None
    words: Words | None = "one"
    weights: Annotated[dict[str, Annotated[float, Ge(0.5)]] | None, doc("by name")] = None
    on: bool = False
    made: list[int] = field(default_factory=list)
    hidden: int = field(init=False, default=0)


KNOWN = parameters_of(Example)


def test_what_a_declaration_says() -> None:
    assert list(KNOWN) == ["must", "count", "share", "words", "weights", "on", "made"]
    assert KNOWN["must"].default is MISSING
    assert {name: known.default for name, known in KNOWN.items() if name != "must"} == {
        "count": 3, "share": None, "words": "one", "weights": None, "on": False, "made": []
    }  # fmt: skip
    assert (KNOWN["count"].doc, KNOWN["words"].doc, KNOWN["weights"].doc) == ("how many", "a choice", "by name")
    assert (KNOWN["words"].words, KNOWN["count"].words) == (("one", "two"), ())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("must", 1.0, "must be a whole number, not 1.0"),
        ("must", True, "must be a whole number, not True"),
        ("count", 0, "must be a whole number of at least 1, not 0"),
        ("count", 10**10, "must be a whole number of at least 1 and at most 1,000,000,000, not 10000000000"),
        ("count", None, "must be a whole number of at least 1, not None"),
        ("share", 0, "must be a number above 0 and below 1 or null, not 0"),
        ("share", float("nan"), "must be a number above 0 and below 1 or null, not nan"),
        ("share", "0.5", "must be a number above 0 and below 1 or null, not '0.5'"),
        ("words", "three", "must be one of one, two or null, not 'three'"),
        ("words", 1, "must be one of one, two or null, not 1"),
        ("weights", {"a": 0.1}, "must be a mapping to a number of at least 0.5 or null, not {'a': 0.1}"),
        ("weights", {1: 1.0}, "must be a mapping to a number of at least 0.5 or null, not {1: 1.0}"),
        ("on", 1, "must be true or false, not 1"),
    ],
)
def test_values_that_are_refused(name: str, value: object, says: str) -> None:
    assert KNOWN[name].refusal(value) == says
    with pytest.raises(ValueError, match=f"^{name} must be"):
        check_arguments(Example, {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("must", -5), ("share", None), ("share", 0.5), ("words", "two"), ("words", None), ("weights", {"a": 1}),
     ("weights", {}), ("on", True), ("made", "anything")],
)  # fmt: skip
def test_values_that_are_taken(name: str, value: object) -> None:
    assert KNOWN[name].refusal(value) is None


def test_a_function_declares_its_parameters_too() -> None:
    def make(size: Annotated[int, Ge(2)] = 2, *, name: str = "") -> None: ...

    make.__annotations__ = {"size": Annotated[int, Ge(2)], "name": str}
    assert [known.default for known in parameters_of(make).values()] == [2, ""]
    with pytest.raises(ValueError, match="size must be a whole number of at least 2, not 1"):
        check_arguments(make, {"size": 1})


DECLARED: list[tuple[str, Parameter]] = [
    *((name, known) for name in built_in_policies() for known in policy_parameters(policy_class(name)).values()),
    *((name, known) for name, kind in QUEUES.items() for known in kind.parameters.values()),
]


@pytest.mark.parametrize(("owner", "parameter"), DECLARED, ids=lambda part: getattr(part, "name", part))
def test_every_parameter_is_described_and_takes_its_default(owner: str, parameter: Parameter) -> None:
    assert 10 < len(parameter.doc) < 90, f"{owner}.{parameter.name}: one line for the reference"
    assert parameter.refusal(parameter.default) is None
    assert parameter.refusal(object()) is not None


LOOSE = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(), st.sampled_from(["fcfs", "last", "x", "swap"]),
    st.dictionaries(st.text(max_size=2), st.floats(), max_size=2),
)  # fmt: skip


@given(declared=st.sampled_from(DECLARED), value=LOOSE)
def test_python_callers_and_yaml_meet_the_same_limits(declared: tuple[str, Parameter], value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(declared[1].annotation, config=ConfigDict(strict=True, allow_inf_nan=False))
    try:
        adapter.validate_python(value)
    except ValidationError:
        assert declared[1].refusal(value) is not None
    else:
        assert declared[1].refusal(value) is None


@pytest.mark.parametrize("name", built_in_policies())
def test_every_policy_checks_its_own(name: str) -> None:
    """In construction, by whatever way."""
    cls: Any = policy_class(name)
    for known in policy_parameters(cls).values():
        with pytest.raises(ValueError, match=f"^{known.name} must be"):
            cls(**{known.name: object()})
    check_parameters(load_policy(name, {}))
