"""The queue's account of the decoding requests: as if all were sorted, whatever joins, leaves and is served."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.decode_batch import DecodeBatch
from simulator.queues.decoding_order import DecodingByLevel, DecodingByRank, Quanta
from simulator.request import Request
from simulator.request_state import RequestState
from tests.examples import examples

MOVES = st.lists(st.tuples(st.sampled_from(["join", "leave", "serve", "look"]), st.integers(0, 40)), max_size=80)


def play(meter: Any, key: Any, moves: list[tuple[str, int]]) -> int:
    """Carry the moves out on a batch that tells the meter; returns how often a look was compared."""
    batch = DecodeBatch(4)
    batch.meter = meter
    outside = [RequestState(Request(row, str(row), 0.0, row % 7 + 1, 9, 9, row % 3), batch.clock) for row in range(12)]
    for live in outside:
        live.last_token_s = 0.0  # that of its prompt
    for row in (3, 8):
        outside[row].promoted_at_tokens = 0
    inside: list[RequestState] = []
    looks = 0
    for move, number in moves:
        if move == "join" and outside:
            inside.append(outside.pop(number % len(outside)))
            batch.join(inside[-1], 1000)
        elif move == "leave" and inside:
            outside.append(inside.pop(number % len(inside)))
            batch.leave(outside[-1])
        elif move == "serve" and inside:
            batch.advance(number, 1.0)
        else:
            assert [live.row for live in meter.last_first()] == [
                live.row for live in sorted(inside, key=key, reverse=True)
            ]
            looks += 1
    return looks


@given(moves=MOVES, quantum=st.integers(1, 3), prompt=st.integers(1, 4))
@examples(150)
def test_levels_fall_as_tokens_are_served(moves: list[tuple[str, int]], quantum: int, prompt: int) -> None:
    quanta = Quanta(quantum, prompt)
    play(DecodingByLevel(quanta), lambda live: (quanta.level(live), live.row), [*moves, ("look", 0)])


@given(moves=MOVES)
@examples(50)
def test_priorities_stay(moves: list[tuple[str, int]]) -> None:
    assert play(
        DecodingByRank(lambda live: live.priority), lambda live: (live.priority, live.row), [*moves, ("look", 0)]
    )


@pytest.mark.parametrize("times", [1, 2])
def test_looking_often_changes_nothing(times: int) -> None:
    """Two requests with 1 token each on level 0: both are on level 2 after three more, and fall on."""
    looks = [("look", 0)] * times
    moves = [("join", 5), ("join", 1), *looks, ("serve", 3), *looks, ("serve", 40), *looks]
    quanta = Quanta(1, 256)
    assert play(DecodingByLevel(quanta), lambda live: (quanta.level(live), live.row), moves) == 3 * times


def test_what_left_is_forgotten() -> None:
    """Requests that come and go with long quanta leave nothing behind."""
    kept = DecodingByLevel(Quanta(1_000_000, 256))
    play(kept, lambda live: 0, [("join", 0), ("leave", 0)] * 1000)
    assert len(kept._falls) <= 65
    assert not list(kept.last_first())
