"""The skip-join multi-level feedback queue by hand."""

import pytest

from simulator.errors import InputError
from simulator.queues import make_queue
from simulator.queues.decoding_order import Quanta
from simulator.queues.mlfq import Mlfq
from simulator.request import Request
from simulator.request_state import DecodeClock, RequestState

CLOCK = DecodeClock(4)


def level(live: RequestState, min_quantum_tokens: int, prompt_tokens_per_quantum: int) -> int:
    return Quanta(min_quantum_tokens, prompt_tokens_per_quantum).level(live)


def request(row: int, inputs: int = 1, outputs: int = 0, arrival_s: float = 0.0) -> RequestState:
    live = RequestState(Request(row, str(row), arrival_s, inputs, 1000, 1000), CLOCK)
    live.base_outputs = outputs
    return live


def preempted(row: int, left_s: float, outputs: int) -> RequestState:
    live = request(row, outputs=outputs)
    setbacks = live.set_back()
    setbacks.preemptions, setbacks.left_s = 1, left_s
    return live


def test_quanta_double_from_level_to_level() -> None:
    """1 token on level 0, 2 on level 1, 4 on level 2: demoted with the 1st, 3rd, 7th, 15th token."""
    levels = [level(request(0, outputs=outputs), 1, 256) for outputs in range(16)]
    assert levels == [0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 4]
    levels = [level(request(0, outputs=outputs), 3, 256) for outputs in range(22)]
    assert levels == [0] * 3 + [1] * 6 + [2] * 12 + [3]


def test_a_prompt_joins_below_the_quanta_it_would_use_up() -> None:
    lengths = [1, 255, 256, 767, 768, 1792, 4096]
    assert [level(request(0, inputs=length), 1, 256) for length in lengths] == [0, 0, 1, 1, 2, 3, 4]
    assert [level(request(0, inputs=length), 8, 256) for length in lengths] == [0, 0, 1, 1, 2, 3, 4]
    # What it was served counts from there: 3 quanta for the prompt and 4 tokens.
    assert level(request(0, inputs=768, outputs=4), 1, 256) == 3


def test_higher_levels_first_and_in_turn_within_one() -> None:
    queue = Mlfq()
    requests = [request(0, outputs=5), request(1), request(2, outputs=1), request(3), request(4, inputs=300)]
    for live in requests:
        queue.push(live)
    queue.put_back(request(5, outputs=4))
    assert [live.row for live in queue] == [1, 3, 2, 4, 0, 5]
    assert queue.head.row == 1
    queue.remove(requests[1])
    queue.remove(requests[0])
    assert [live.row for live in queue] == [3, 2, 4, 5]
    assert len(queue) == 4


def test_who_starves_goes_first_and_its_service_is_forgotten() -> None:
    """3 s after the arrival, or after the preemption: in the order in which they began to wait."""
    queue = Mlfq(starve_limit_s=3.0)
    long = request(0, inputs=2000, arrival_s=0.5)
    left = preempted(1, left_s=1.0, outputs=100)
    young = request(2, arrival_s=3.0)
    for live in (long, left, young):
        queue.push(live)
    for now_s, order in ((3.25, [2, 0, 1]), (3.5, [0, 2, 1]), (4.0, [0, 1, 2]), (6.0, [0, 1, 2])):
        queue.at(now_s)
        assert [live.row for live in queue] == order
    assert [live.promoted_at_tokens for live in (long, left, young)] == [0, 100, 0]
    assert [level(live, 1, 256) for live in (long, left, young)] == [0, 0, 0]
    left.base_outputs = 103
    assert level(left, 1, 256) == 2
    for live in (young, long, left):
        queue.remove(live)
    assert len(queue) == 0


def test_who_was_promoted_and_waits_again_has_its_new_level() -> None:
    queue = Mlfq(starve_limit_s=3.0)
    live = preempted(0, left_s=0.0, outputs=100)
    queue.push(live)
    queue.at(3.0)
    queue.remove(live)
    live.base_outputs = 101
    live.set_back().left_s = 4.0
    queue.put_back(live)
    queue.push(request(1, arrival_s=4.0))
    queue.at(6.5)
    assert [waiting.row for waiting in queue] == [1, 0]
    queue.at(7.0)
    assert [waiting.row for waiting in queue] == [0, 1]
    assert live.promoted_at_tokens == 101


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"min_quantum_tokens": 0}, "min_quantum_tokens must be a whole number of at least 1, not 0"),
        ({"prompt_tokens_per_quantum": 0}, "prompt_tokens_per_quantum must be a whole number of at least 1"),
        ({"starve_limit_s": 0.0}, "starve_limit_s must be a number above 0"),
        ({"starve_limit_s": float("nan")}, "starve_limit_s must be a number above 0"),
    ],
)
def test_parameters_that_make_no_queue(parameters: dict[str, float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        make_queue("mlfq", **parameters)
