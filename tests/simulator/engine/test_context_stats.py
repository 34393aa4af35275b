from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.decode_batch import ContextStats
from simulator.timing.cost import StepShape


@given(st.lists(st.tuples(st.booleans(), st.integers(-50, 50)), max_size=60), st.integers(0, 1000))
def test_it_is_what_a_walk_over_all_gives(moves: list[tuple[bool, int]], ticks: int) -> None:
    spread, offsets = ContextStats(), []
    for joins, offset in moves:
        if joins:
            spread.add(offset)
            offsets.append(offset)
        elif offset in offsets:
            spread.remove(offset)
            offsets.remove(offset)
        now = ticks + 100
        contexts = [now + o for o in offsets]
        assert spread.at(now) == (max(contexts, default=0), sum(context * context for context in contexts))


def test_clear_forgets_all() -> None:
    spread = ContextStats()
    spread.add(3)
    spread.clear()
    assert spread.at(10) == (0, 0)
    spread.add(-2)
    assert spread.at(10) == (8, 64)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=20), st.integers(0, 100))
def test_a_later_shape_is_that_of_longer_contexts(contexts: list[int], steps: int) -> None:
    def shape(grown: list[int]) -> StepShape:
        squares = sum(context * context for context in grown)
        return StepShape(len(grown), sum(grown), decode_longest=max(grown), decode_squares=squares)

    assert shape(contexts).later(steps) == shape([context + steps for context in contexts])


def test_a_later_shape_of_unknown_spread_stays_so() -> None:
    assert StepShape(3, 30).later(5) == StepShape(3, 45)
