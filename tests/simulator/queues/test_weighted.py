"""The order `weighted` by class and by what the prefix cache holds."""

from simulator.queues import make_queue
from simulator.queues.sorted_queues import Prefixes
from simulator.queues.weighted import LOOKED_UP, CachedFirst
from simulator.request_state import RequestState
from tests.simulator.queues.test_queues import request, rows


def _queue(cached: dict[int, int], **parameters: float) -> CachedFirst:
    """A queue of a replica whose cache holds so many tokens of the requests with these rows."""
    queue = make_queue("weighted", **parameters)
    assert isinstance(queue, CachedFirst)

    def hit_tokens(live: RequestState) -> int:
        return cached.get(live.row, 0)

    queue.prefixes = Prefixes(hit_tokens, lambda *_: None, list)
    return queue


def test_a_class_waits_as_much_longer_as_it_is_told() -> None:
    queue = make_queue("weighted", class_s={"batch": 2.5})
    for row, name in enumerate(("batch", "chat", "chat", "batch", "chat")):
        queue.push(request(row, class_name=name))
    assert rows(queue) == [1, 2, 0, 4, 3]


def test_who_is_cached_goes_first_as_the_cache_is_when_a_step_is_planned() -> None:
    cached = {3: 32}
    queue = _queue(cached, cached_token_s=0.1)
    for row in range(4):
        queue.push(request(row))
    assert rows(queue) == [3, 0, 1, 2]
    cached[2] = 64
    assert rows(queue) == [3, 0, 1, 2], "within a step the order stays"
    queue.remove(queue.head)
    assert queue.head.row == 0
    queue.at(4.0)
    assert rows(queue) == [2, 0, 1]
    queue.put_back(request(3))
    assert rows(queue) == [2, 3, 0, 1]
    assert len(queue) == 4


def test_only_the_first_in_time_are_looked_up() -> None:
    last = LOOKED_UP
    queue = _queue(dict.fromkeys((0, last - 1, last), 10_000), cached_token_s=1.0, late_after_s=10.0)
    for row in range(last + 1):
        queue.push(request(row))
    assert rows(queue)[:3] == [0, last - 1, 1]
    assert queue.head.row == 0
    queue.at(10.5)
    assert rows(queue)[:3] == [last - 1, last, 1]
    assert rows(queue)[-1] == 0, "late, and last for all that is cached of it"
