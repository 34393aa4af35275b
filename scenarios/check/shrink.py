"""Shrink a case that breaks a law as far as it still does: greedily, one kind of simplification after the other."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from scenarios.check.random_case import Cost, RandomCase, RandomRequest

MOST_TRIES = 400


def shrink(
    case: RandomCase, breaks: Callable[[RandomCase], bool], fixed: Collection[str] = (), most_tries: int = MOST_TRIES
) -> RandomCase:
    """Simplify a case as long as it `breaks`, in at most `most_tries` tries. Parameters in `fixed` stay."""
    tries = 0
    progress = True
    while progress:
        progress = False
        for simpler in _SIMPLER:
            again = True
            while again:
                again = False
                for candidate in simpler(case, fixed):
                    if tries >= most_tries:
                        return case
                    tries += 1
                    if breaks(candidate):
                        case, again, progress = candidate, True, True
                        break
    return case


# Each yields cases that are simpler in one thing, the largest steps first; nothing where it is as simple as can be.


def _fewer_requests(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    requests = case.requests
    part = len(requests) // 2
    while part:
        for start in range(0, len(requests), part):
            rest = requests[:start] + requests[start + part :]
            if rest:
                yield _with(case, rest)
        part //= 2


def _fewer_features(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    plain = RandomCase(case.requests, case.num_gpu_blocks, case.block_size)
    for feature in ("replicas", "router", "num_host_blocks", "swap_s_per_block"):
        if (without := getattr(plain, feature)) != getattr(case, feature):
            yield replace(case, **{feature: without})
    for key in case.parameters:
        if key not in fixed:
            yield replace(case, parameters={name: value for name, value in case.parameters.items() if name != key})


def _rounder_times(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    """Try steps of a second with arrivals between them, all arrivals at once, and arrivals at whole seconds."""
    times = [request.arrival_s for request in case.requests]
    cost = case.cost
    if cost != Cost():
        yield _at(replace(case, cost=Cost()), [round(time / cost.base_s, 3) for time in times])
        yield replace(case, cost=Cost())
        if cost != Cost(cost.base_s):
            yield replace(case, cost=Cost(cost.base_s))
    if any(times):
        yield _at(case, [0.0] * len(times))
    ranks = {time: float(rank) for rank, time in enumerate(sorted(set(times)))}
    for rounder in ([ranks[time] for time in times], [float(int(time)) for time in times]):
        if sum(rounder) < sum(times):
            yield _at(case, rounder)


def _smaller_requests(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    """Make all requests smaller at once, then one by one."""
    requests = case.requests
    for change in _SMALLER:
        changed = tuple(change(request) for request in requests)
        if changed != requests:
            yield _with(case, changed)
    for place, request in enumerate(requests):
        for change in _SMALLER:
            if (smaller := change(request)) != request:
                yield _with(case, (*requests[:place], smaller, *requests[place + 1 :]))


_SMALLER: tuple[Callable[[RandomRequest], RandomRequest], ...] = (
    lambda r: replace(r, priority=0, class_name="default"),
    lambda r: replace(r, priority=0),
    lambda r: replace(r, class_name="default"),
    lambda r: replace(r, input_tokens=1),
    lambda r: replace(r, output_tokens=1),
    lambda r: replace(r, max_tokens=r.output_tokens),
    lambda r: replace(r, input_tokens=(r.input_tokens + 1) // 2),
    lambda r: replace(r, output_tokens=(r.output_tokens + 1) // 2),
    lambda r: replace(r, input_tokens=max(1, r.input_tokens - 1)),
    lambda r: replace(r, output_tokens=max(1, r.output_tokens - 1)),
    lambda r: replace(r, max_tokens=max(r.output_tokens, r.max_tokens - 1)),
)


def _ample_memory(case: RandomCase, fixed: Collection[str]) -> Iterator[RandomCase]:
    if case.num_gpu_blocks < 1001:
        yield replace(case, num_gpu_blocks=1001)


_SIMPLER = (_fewer_requests, _fewer_features, _ample_memory, _rounder_times, _smaller_requests)


def _at(case: RandomCase, times: list[float]) -> RandomCase:
    moved = [replace(request, arrival_s=time) for request, time in zip(case.requests, times, strict=True)]
    return replace(case, requests=tuple(moved))


def _with(case: RandomCase, requests: tuple[RandomRequest, ...]) -> RandomCase:
    """Replace the requests, and let the first of them arrive at 0."""
    first_s = requests[0].arrival_s
    return replace(case, requests=tuple(replace(r, arrival_s=round(r.arrival_s - first_s, 6)) for r in requests))
