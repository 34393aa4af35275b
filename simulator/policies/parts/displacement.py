"""Which running requests give way to waiting ones, without a walk over the batch."""

from collections.abc import Callable, Iterable
from heapq import merge

from simulator.plan import View
from simulator.queues.priority import rank
from simulator.request import RequestView


def last_first(view: View, key: Callable[[RequestView], tuple[int, int]]) -> Iterable[RequestView]:
    """The running requests by the key of the queue's order, the largest first; no two keys are equal.

    A list that the queue keeps spares the sorting: it is read only as far as it is asked for.
    """
    decoding = view.decoding_last_first()
    if decoding is None:
        return sorted(view.running, key=key, reverse=True)
    if not view.prefilling:
        return decoding
    return merge(decoding, sorted(view.prefilling, key=key, reverse=True), key=key, reverse=True)


def displaces_none(view: View) -> bool:
    """True if no waiting request has a higher priority than a running one."""
    if not view.waiting:
        return True
    least = next(iter(last_first(view, rank)), None)
    return least is None or least.priority <= view.waiting.head.priority
