"""What a router hears, and when: loads as of its last look, and events of prefix caches some time later."""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from itertools import count

from simpy.events import Event

from simulator.engine.admission import ReplicaLoad
from simulator.engine.clock import Clock
from simulator.engine.intake import Intake
from simulator.engine.replica import Replica
from simulator.fleet.dispatch import Dispatch
from simulator.fleet.router import Replicas, Router, RouterFeatures
from simulator.fleet.windows import Signal
from simulator.front_end import FirstTokens, FrontEnd
from simulator.goes_with import CACHE_EVENTS, KV_GROUPS, between
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.radix_cache import Pages, RadixCache, chained
from simulator.request import ArrivingRequest

# Events of prefix caches: which blocks a replica stored and removed, as a router hears of them some time later.
#
# Servers publish them (vLLM: `--kv-events-config`), and gateways keep an index of what each server holds: Dynamo's
# KV router, LMCache's controller. A block counts as stored as it is scheduled, as in vLLM's block pool. Where a
# replica has several copies of a block, the index counts them: the block is there until the last is removed. Pages
# of SGLang's tree are stored as they enter it, after the step that computed them.


class HeardCache:
    """What is known of one replica's prefix cache: all events of `lag_s` ago and before.

    `numbers` counts the events of all replicas, in their order.
    """

    def __init__(self, replica: Replica, clock: Clock, lag_s: float, numbers: Iterator[int]) -> None:
        self._state = replica.state
        self._clock = clock
        self._lag_s = lag_s
        self._numbers = numbers
        self._coming: deque[tuple[float, int, int, list[Hashable]]] = deque()
        self._copies: dict[Hashable, int] = {}
        self._since: dict[Hashable, int] = {}  # the number of the event that stored a block's first copy
        self._state.fills = None  # each block enters as it is filled, so that its event has its time
        cache = replica.state.cache
        if isinstance(cache, RadixCache):
            cache.tree.tell = self._tell_path
        elif isinstance(cache, (PrefixCache, PrefixLedger)):
            cache.tell = self._tell
            cache.keys.used = None  # no text is forgotten, and none gets another name than was told
        else:
            raise between(KV_GROUPS, CACHE_EVENTS).error(f"replica {replica.index}")
        self._cache = cache

    def _tell(self, keys: list[Hashable], more: int) -> None:
        """Now there is one copy `more` of each of these blocks: 1, or -1."""
        self._coming.append((self._clock.now, next(self._numbers), more, keys))

    def _tell_path(self, pages: Pages, start: int, more: int) -> None:
        self._tell(chained(pages)[start:], more)

    def _known(self, request: ArrivingRequest, blocks: int) -> list[Hashable]:
        """The keys of the first `blocks` blocks of a prompt that others may have; what is due has been heard."""
        copies, since, cache = self._copies, self._since, self._cache
        while self._coming and self._coming[0][0] <= self._clock.now - self._lag_s:
            _, number, more, keys = self._coming.popleft()
            for key in keys:
                copies[key] = copies.get(key, 0) + more
                if not copies[key]:
                    del copies[key], since[key]
                elif key not in since:
                    since[key] = number
        known = cache.names(request.prompt(), blocks)
        if request.row not in self._state.requests:
            cache.end(request.row)
        return known

    def cached_tokens(self, request: ArrivingRequest) -> int:
        """Leading tokens of the prompt that are known to be cached."""
        keys, size = self._cache.keys, self._cache.block_size
        known = self._known(request, (request.input_tokens - (1 if keys is None else keys.behind)) // size)
        found = next((place for place, key in enumerate(known) if key not in self._copies), len(known))
        return (found - 1 if found and keys is not None and keys.drops_hit_block else found) * size

    def stored(self, request: ArrivingRequest, chunk_tokens: int) -> list[int | None]:
        """For each full chunk of the prompt, the number of the event that stored its last block; None: it is not there.

        Chunks that no other request can have are left out. One that ends before the first block does is not there.
        """
        size = self._cache.block_size
        known = self._known(request, request.input_tokens // size)
        ends = range(chunk_tokens, request.input_tokens + 1, chunk_tokens)
        blocks = [end // size for end in ends if end // size <= len(known)]
        return [self._since.get(known[last - 1]) if last else None for last in blocks]


# Loads as stale as a real router's: as of its last look, and what it has sent since.
#
# Real routers differ in what they know at once. One that counts the requests that pass through it knows its own
# count without delay (SGLang's router, nginx's least_conn): that is an interval of 0. One that scrapes the servers'
# metrics knows the queue and the KV cache as of the last scrape (the endpoint picker of llm-d and of the Gateway
# API Inference Extension scrapes every 50 ms). Here a look takes all signals of all replicas. Until the next one,
# `num_unfinished` grows with what the router itself sends, as such a router keeps count of that; what ends
# meanwhile is not seen, and `num_waiting`, `num_running`, the adapters and the use of KV stay as they were, as
# scraped metrics do.


class SeenLoad(ReplicaLoad):
    """A replica's load as of the last look, with the requests sent to it since."""

    __slots__ = ("_live", "loras", "num_running", "num_unfinished", "num_waiting", "used_blocks")

    num_waiting: int
    num_running: int
    num_unfinished: int
    used_blocks: int
    loras: tuple[str, ...]

    def __init__(self, live: ReplicaLoad) -> None:
        self._live = live
        self.index = live.index
        self.group = live.group
        self.max_num_seqs = live.max_num_seqs
        self.num_blocks = live.num_blocks
        self.max_loras = live.max_loras
        self.expected = 0
        self.show(Signal.of(live))

    def show(self, signal: Signal) -> None:
        """Take the signals of a look."""
        self.num_waiting, self.num_running, self.used_blocks, self.loras = signal
        self.num_unfinished = signal.num_waiting + signal.num_running

    def look(self) -> None:
        """Take the signals as they are now."""
        self.show(Signal.of(self._live))
        self.expected = self._live.expected

    def cached_tokens(self, request: ArrivingRequest) -> int:
        return self._live.cached_tokens(request)


class Signals:
    """Loads as of the last look; `replicas` is what the router is given."""

    def __init__(self, loads: Sequence[ReplicaLoad]) -> None:
        self._seen = {load.index: SeenLoad(load) for load in loads}
        self.replicas = Replicas(list(self._seen.values()))
        self.replicas.looks = 0

    def sent(self, load: ReplicaLoad) -> None:
        """The router has sent a request to this replica."""
        self._seen[load.index].num_unfinished += 1
        self.replicas.changed(load.index)

    def show(self, signals: Iterable[Signal]) -> None:
        """A look has been taken at all replicas, whose signals these are in the order of their numbers."""
        for load, signal in zip(self._seen.values(), signals, strict=True):
            load.show(signal)
        self.replicas.looked()

    def looks(self, clock: Clock, interval_s: float) -> Generator[Event, object, None]:
        """The SimPy process that looks at every multiple of `interval_s`, before the decisions of that moment.

        It ends when nothing else can happen. Ticks are counted, so that no time is a sum of intervals.
        """
        tick = 0
        while clock.has_events:
            tick += 1
            yield clock.tick(tick * interval_s)
            for load in self._seen.values():
                load.look()
            self.replicas.looked()


class Heard(FirstTokens):
    """Tells a router of each first token, and then whoever else is told."""

    __slots__ = ("_began", "_others")

    def __init__(self, began: Callable[[int], None], others: FirstTokens | None) -> None:
        super().__init__(FrontEnd())
        self._began = began
        self._others = others

    def sampled(self, row: int, running: int, at_s: float, *, streams: bool) -> None:
        self._began(row)
        if self._others is not None:
            self._others.sampled(row, running, at_s, streams=streams)


def way_to(
    clock: Clock, chosen: Sequence[Replica], intakes: Sequence[Intake], router: Router, signal_interval_s: float
) -> Dispatch:
    """The way to some replicas: the router chooses among them by live loads, or by those of its last look.

    `intakes` are those of all replicas, by number.
    """
    loads = [replica.load for replica in chosen]
    features = RouterFeatures.of(router)
    reads = features.reads_loads and len(loads) > 1
    if features.reads_caches and len(loads) > 1:
        _hear_caches(clock, chosen, router, hears=features.hears_caches)
    if features.hears_first_tokens:
        began = router.began  # type: ignore[attr-defined]  # such a router has it
        for replica in chosen:
            replica.first_tokens = Heard(began, replica.first_tokens)
    if features.hears_ends:
        for replica in chosen:
            replica.completion.ended = router.ended  # type: ignore[attr-defined]  # such a router has it
    if signal_interval_s > 0 and reads:
        signals = Signals(loads)
        clock.process(signals.looks(clock, signal_interval_s))
        return Dispatch(router, signals.replicas, intakes, signals.sent)
    replicas = Replicas(loads)
    if reads:
        for replica in chosen:
            replica.changed = replicas.changed
    return Dispatch(router, replicas, intakes)


def _hear_caches(clock: Clock, replicas: Sequence[Replica], router: Router, *, hears: bool) -> None:
    """Let a router know of these replicas' prefix caches by events, where it does."""
    lag_s = getattr(router, "kv_event_lag_s", 0.0)
    if not hears and not lag_s:
        return
    numbers = count()
    heard = {
        replica.index: HeardCache(replica, clock, lag_s, numbers)
        for replica in replicas
        if replica.state.cache is not None
    }
    for replica in replicas:
        if replica.index in heard:
            replica.load.know_cached(heard[replica.index].cached_tokens)
    if hears:
        router.listen(heard)  # type: ignore[attr-defined]  # such a router has it
