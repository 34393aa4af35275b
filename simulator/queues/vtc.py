"""Virtual token counters: Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, algorithm 2."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.queues.order import OrderKind
from simulator.queues.sorted_queues import Classes, ClassWeights, OutputPrice, PromptPrice, check_prices
from simulator.request import RequestView
from simulator.request_state import DecodeClock, RequestState


class OutputMeter:
    """Output tokens by class. Those of decoding requests advance with the replica's clock, as the requests' own do."""

    __slots__ = ("_clock", "_decoding", "_settled")

    def __init__(self) -> None:
        self._clock: DecodeClock | None = None
        self._decoding: dict[str, int] = {}
        self._settled: dict[str, int] = {}

    def sampled(self, live: RequestState) -> None:
        self._settled[live.class_name] = self._settled.get(live.class_name, 0) + 1

    def joined(self, live: RequestState) -> None:
        self._clock = live.clock
        self._change(live, 1)

    def left(self, live: RequestState) -> None:
        self._change(live, -1)

    def tokens(self, class_name: str) -> int:
        """Output tokens of a class up to now."""
        ticks = 0 if self._clock is None else self._clock.ticks
        return self._settled.get(class_name, 0) + self._decoding.get(class_name, 0) * ticks

    def _change(self, live: RequestState, by: int) -> None:
        name = live.class_name
        self._decoding[name] = self._decoding.get(name, 0) + by
        self._settled[name] = self._settled.get(name, 0) - by * live.clock.ticks


@dataclass(slots=True)
class _Account:
    """A class's counter: `base`, and what was served since it was set.

    Tokens are counted as integers, so that the order of the charges does not matter.
    """

    base: float = 0.0
    prompt_tokens: int = 0
    output_tokens_before: int = 0


class Vtc:
    """The class with the smallest counter first (then the earliest arrival); within a class in order of arrival.

    A counter is charged `w_p` a prompt token when a request is admitted and `w_q` an output token when it exists,
    divided by the class's weight (1 where `class_weights` does not name it). A class without a waiting request is
    lifted when one arrives: to the smallest counter of the classes that wait, or of the last that did, so that no
    service can be saved up. Between classes that wait all the time, service differs by at most
    2 max(w_p L_input, w_q M) (theorem 4.4; L_input the longest prompt, M the most tokens of a batch, w_p <= w_q).

    What the paper leaves open: a preempted request comes back as if it arrived, and its prompt is not charged again.
    Lifts are made, in order of arrival, before the next plan: the counters are then those of a step's end.
    """

    __slots__ = ("_accounts", "_classes", "_last_left", "_newcomers", "_settled", "_w_p", "_w_q", "_weights", "meter")

    timeless = False

    def __init__(self, class_weights: ClassWeights = None, w_p: PromptPrice = 1.0, w_q: OutputPrice = 2.0) -> None:
        check_prices(w_p, w_q)
        self._weights = dict(class_weights or {})
        self._w_p = w_p
        self._w_q = w_q
        self._classes = Classes()
        self._accounts: defaultdict[str, _Account] = defaultdict(_Account)
        self._newcomers: list[str] = []  # classes without a waiting request until now
        self._last_left: str | None = None
        self.meter = OutputMeter()

    def __len__(self) -> int:
        return len(self._classes)

    def __iter__(self) -> Iterator[RequestState]:
        """Each time of the class with the smallest counter, were those before admitted and charged."""
        taken: dict[str, int] = {}  # prompt tokens of those before, by class
        last: dict[str, RequestState] = {}

        def rank(head: RequestState) -> float:
            name = head.class_name
            if name in last:
                taken[name] = taken.get(name, 0) + _prompt_to_charge(last[name])
            last[name] = head
            return self.counter(name, taken.get(name, 0))

        return self._classes.in_order(rank)

    @property
    def head(self) -> RequestState:
        return self._classes.first(lambda head: self.counter(head.class_name))

    def counter(self, class_name: str, more_prompt_tokens: int = 0) -> float:
        """Weighted service of a class, lifts included, if it were charged so many prompt tokens more."""
        account = self._accounts.get(class_name, _NEW)
        output_tokens = self.meter.tokens(class_name) - account.output_tokens_before
        served = self._w_p * (account.prompt_tokens + more_prompt_tokens) + self._w_q * output_tokens
        return account.base + served / self._weights.get(class_name, 1.0)

    def at(self, now_s: float) -> None:
        if not self._newcomers:
            return
        waiting = [name for name in self._classes.names() if name not in self._newcomers]
        for name in self._newcomers:
            if name not in self._classes:
                continue
            if waiting:
                self._lift(name, min([self.counter(other) for other in waiting]))
            elif self._last_left is not None:
                self._lift(name, self.counter(self._last_left))
            waiting.append(name)
        self._newcomers.clear()

    def push(self, request: RequestState) -> None:
        name = request.class_name
        if name not in self._classes:
            self._newcomers.append(name)
        self._classes.add(request)

    put_back = push

    def remove(self, request: RequestState) -> None:
        self.drop(request)
        self._accounts[request.class_name].prompt_tokens += _prompt_to_charge(request)

    def drop(self, request: RequestState) -> None:
        self._classes.remove(request)
        self._last_left = request.class_name

    def _lift(self, class_name: str, counter: float) -> None:
        if self.counter(class_name) < counter:
            account = self._accounts[class_name]
            account.base = counter
            account.prompt_tokens = 0
            account.output_tokens_before = self.meter.tokens(class_name)


def _prompt_to_charge(request: RequestView) -> int:
    return 0 if request.num_preemptions else request.input_tokens


_NEW = _Account()  # never changed
ORDER = OrderKind(Vtc)
