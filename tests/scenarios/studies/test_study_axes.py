"""What `--vary` and a study's `vary` may say, and the designs made of them."""

import numpy as np
import pytest

from scenarios.studies.study import grid, make_axis, make_span, parse_vary, random_design
from simulator.errors import InputError


def values(text: str) -> list[object]:
    axis = parse_vary(text)
    return [place[0] if len(place) == 1 else place for place in axis.places]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.b=1,2,3", [1, 2, 3]),
        ("a=static,chunked_prefill", ["static", "chunked_prefill"]),
        ("a=1:4:7", [1, 1.5, 2, 2.5, 3, 3.5, 4]),
        ("a=2:8:4", [2, 4, 6, 8]),
        ("a=1:64:7:log", [1, 2, 4, 8, 16, 32, 64]),
        ("a=0.1:0.3:3", [0.1, 0.2, 0.3]),
        ("a=8:2:3:linear", [8, 5, 2]),
        ("a=5:9:1", [5]),
        ("a=true,null", [True, None]),
        (
            "a={kind: linear, base_s: 1e-3},{kind: roofline}",
            [{"kind": "linear", "base_s": 0.001}, {"kind": "roofline"}],
        ),
        ('a="x,y",z', ["x,y", "z"]),
        ("a=my.py:Policy", ["my.py:Policy"]),
        ("a, b=[1, x],[2, y]", [(1, "x"), (2, "y")]),
    ],
)
def test_values_of_a_key(text: str, expected: list[object]) -> None:
    assert values(text) == expected


def test_whole_steps_between_whole_ends_are_whole_numbers() -> None:
    assert [type(value) for value in values("a=1:64:7:log")] == [int] * 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "not of the form"),
        ("=1", "not of the form"),
        ("a=1,,2", "missing between"),
        ("a=1:4:0", "1 to 100,000 steps"),
        ("a=0:4:3:log", "ends above 0"),
        ("a=1:4:3:cubic", "unknown scale"),
        ("seed=1,2", "seed cannot be varied"),
        ("a, b=1,2", "each value is a list of 2"),
        ("a, =1,2", "not a key"),
        ("a=[1", "--vary a=[1"),
    ],
)
def test_what_cannot_be_varied_is_said_with_the_flag(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_vary(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"--vary {text}")


def test_the_first_key_of_a_grid_is_outermost() -> None:
    assert grid([make_axis("a", [1, 2]), make_axis("b", ["x", "y"])]) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_a_random_design_uses_every_share_of_every_axis_once() -> None:
    span, numbers = make_span(1, 1000, 4, "log")
    axes = [make_axis("a", numbers, span), make_axis("b", ["x", "y"])]
    settings = random_design(axes, 30, np.random.default_rng(0))
    shares = sorted(int(np.log10(float(str(setting["a"]))) / 3 * 30) for setting in settings)
    assert shares == list(range(30))
    assert [setting["b"] for setting in settings].count("x") == 15
    assert settings == random_design(axes, 30, np.random.default_rng(0))
