import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.timing.arithmetic import VECTOR_FROM, affine_run
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear

seconds = st.floats(0, 10, allow_subnormal=False)
some_tokens = st.integers(0, 8192)
some_context = st.integers(0, 10**7)


def test_the_formula() -> None:
    cost = Linear(base_s=0.005, per_token_s=2e-5, per_context_token_s=5e-7)
    shape = StepShape(3, 1500, 2, 700, 900, 123456)
    assert cost.step_s(shape) == 0.005 + 2e-5 * 703 + 5e-7 * 2400


@given(seconds, seconds, seconds, some_tokens, some_context, some_tokens, some_context)
def test_left_to_right(
    base_s: float, per_token_s: float, per_context_token_s: float, seqs: int, context: int, prefill: int, behind: int
) -> None:
    shape = StepShape(seqs, context, 1 if prefill else 0, prefill, behind, 0)
    tokens = seqs + prefill
    expected = base_s + per_token_s * tokens + per_context_token_s * (context + behind) if tokens else 0.0
    assert Linear(base_s, per_token_s, per_context_token_s).step_s(shape) == expected


def test_a_step_without_tokens_costs_nothing() -> None:
    assert Linear(1.0, 1.0, 1.0).step_s(StepShape(0, 0)) == 0.0


@given(seconds, seconds, seconds, st.integers(1, 512), st.integers(1, 10**7), st.integers(1, 3 * VECTOR_FROM))
def test_a_run_is_its_steps_to_the_bit(
    base_s: float, per_token_s: float, per_context_token_s: float, seqs: int, context: int, repeat: int
) -> None:
    cost = Linear(base_s, per_token_s, per_context_token_s)
    run = cost.decode_run_s(StepShape(seqs, context), repeat)
    assert run == [cost.step_s(StepShape(seqs, context + i * seqs)) for i in range(repeat)]
    assert all(type(step) is float for step in run)


@pytest.mark.parametrize("repeat", [VECTOR_FROM - 1, VECTOR_FROM, VECTOR_FROM + 1, 2000])
def test_both_ways_of_a_run_agree(repeat: int) -> None:
    first, slope = 0.1, 1 / 3  # neither is a double
    assert affine_run(first, slope, 7, 3, repeat) == [first + slope * (7 + 3 * i) for i in range(repeat)]


@pytest.mark.parametrize("field", ["base_s", "per_token_s", "per_context_token_s"])
@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_coefficients_are_not_negative(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"linear cost: {field} must be 0 or more"):
        Linear(**{"base_s": 0.0, field: value})
