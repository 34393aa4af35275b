"""First come, first served."""

from collections import OrderedDict

from simulator.queues.order import OrderKind
from simulator.request_state import RequestState


class Fcfs(OrderedDict[RequestState, None]):
    """In order of arrival. A preempted request goes to the front, as in vLLM's deque."""

    timeless = True
    meter = None

    @property
    def head(self) -> RequestState:
        return next(iter(self))

    def at(self, now_s: float) -> None:
        pass

    push = OrderedDict.setdefault  # whose default is None

    def put_back(self, request: RequestState) -> None:
        self[request] = None
        self.move_to_end(request, last=False)

    remove = drop = OrderedDict.pop

    def requeue(self, first: tuple[RequestState, ...]) -> None:
        """Put these to the front, in this order."""
        for request in reversed(first):
            self.move_to_end(request, last=False)


def fcfs() -> Fcfs:
    """An empty queue, first come, first served."""
    return Fcfs()


ORDER = OrderKind(fcfs)
