"""Longest output first, as a queue: as if all were sorted at each look, though only later comers are."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.queues.lof import Lof
from simulator.request import Request
from simulator.request_state import DecodeClock, RequestState

MOVES = st.lists(st.tuples(st.sampled_from(["push", "remove", "plan", "keep"]), st.integers(0, 40)), max_size=60)


@given(moves=MOVES)
def test_it_is_as_if_all_were_sorted(moves: list[tuple[str, int]]) -> None:
    """`plan` looks at the queue and forgets the order, `keep` keeps it; in between, later comers are last."""
    clock = DecodeClock(4)
    outside = [RequestState(Request(row, str(row), 0.0, 9, 1, row % 4 + 1), clock) for row in range(10)]
    queue, known = Lof(), list[RequestState]()
    queue.settle(keep=True)
    for move, number in moves:
        if move == "push" and outside:
            known.append(outside.pop(number % len(outside)))
            queue.push(known[-1])
        elif move == "remove" and known:
            outside.append(known.pop(number % len(known)))
            queue.drop(outside[-1])
        elif move in ("plan", "keep"):
            queue.at(0.0)
            by_length = sorted(known, key=lambda live: -live.max_tokens)
            assert list(queue) == by_length
            queue.settle(keep=move == "keep")
            if move == "keep":
                known = by_length
        assert list(queue) == known
        assert len(queue) == len(known)
