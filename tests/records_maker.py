"""Runs for tests of whatever is computed from `Records`: random schedules by brute force, and plain queues.

What happens in a step of `tell` is drawn at random, so that rows break for every reason there is: admissions, chunks,
pauses, preemptions, holding. `single_server` is the textbooks' queue.
"""

import random
from collections.abc import Callable

import numpy as np

from simulator.results.records import Floats, GapColumns, Records, RequestColumns, RequeueColumns, RowColumns, Status
from tests.story import NAN, Story, Told, ToldStep


def tell(seed: int, *, requests: int, streams: bool = True, cut_short: bool = False) -> Story:
    """A random run. Times are eighths of a second in half of the runs, so that things coincide."""
    rng = random.Random(seed)
    grid = rng.random() < 0.5

    def seconds(scale: float) -> float:
        return rng.randint(0, round(8 * scale)) / 8 if grid else rng.uniform(0, scale)

    story = Story([], [], rng.randint(20, 60), rng.randint(1, 5), rng.randint(1, 3), rng.randint(1, 3), streams)
    now = seconds(3)
    for row in range(requests):
        now += 0 if rng.random() < 0.2 else seconds(2)
        told = Told(row, now, rng.randint(1, 40), 1 if rng.random() < 0.2 else rng.randint(2, 12))
        told.class_index, told.replica = rng.randrange(story.classes), rng.randrange(story.replicas)
        told.to_compute = told.input_tokens
        if rng.random() < 0.1:
            told.status = Status.REJECTED
        story.requests.append(told)
    for replica in range(story.replicas):
        _serve(story, replica, rng, seconds, limit=rng.randint(0, 12) if cut_short else 10_000)
    return story


def _serve(story: Story, replica: int, rng: random.Random, seconds: Callable[[float], float], limit: int) -> None:
    """One replica, from its first arrival until all is served or `limit` steps are done."""
    mine = [r for r in story.requests if r.replica == replica and r.status is not Status.REJECTED]
    pending = list(mine)
    waiting: list[Told] = []
    running: list[Told] = []
    held: list[Told] = []
    holds, now, done = rng.random() < 0.3, 0.0, 0
    impatience = random.Random(f"{len(story.requests)} {replica} {story.num_blocks}")
    while done < limit and (pending or waiting or running):
        if not waiting and not running:
            now = max(now, pending[0].arrival_s)
        while pending and pending[0].arrival_s <= now:
            told = pending.pop(0)
            told.waits.append([told.arrival_s, NAN, 0])
            waiting.append(told)
        preempted = [r for r in running if rng.random() < 0.12] if len(running) > 1 else []
        for told in preempted:
            _preempt(told, now, rng)
            running.remove(told)
            waiting.insert(0, told)
        while waiting and not preempted and len(running) + len(held) < story.max_num_seqs and rng.random() < 0.8:
            told = waiting.pop(0)
            _admit(told, now, rng)
            running.append(told)
        if not running:
            if held:
                _release(held, now, story.streams)
            elif not waiting:
                continue
            else:  # the next round of admissions may be luckier
                now += seconds(1)
            continue
        step = _step(story, replica, now, now + seconds(1) + 0.125, running, held, len(waiting), len(preempted), rng)
        now, done = step.end_s, done + 1
        for told in [r for r in running + waiting if impatience.random() < 0.03]:
            _abort(told, now, impatience)
            (running if told in running else waiting).remove(told)
        for told in [r for r in running if len(r.token_s) == r.output_tokens]:
            running.remove(told)
            told.status = Status.FINISHED
            told.released_s = told.delivered_s = now
            if holds or not story.streams:
                held.append(told)
        if held and not running:
            _release(held, now, story.streams)
    for told in pending:  # cut short before it was looked at
        told.waits.append([told.arrival_s, NAN, 0])
    for told in held:  # cut short before the batch could return
        told.status = Status.FINISHED if story.streams else Status.UNFINISHED
        told.delivered_s = told.released_s = NAN
        if story.streams:
            told.delivered_s = told.token_s[-1]


def _abort(told: Told, now: float, rng: random.Random) -> None:
    told.status, told.released_s = Status.ABORTED, now
    told.aborted_tokens = rng.randint(0, told.input_tokens + len(told.token_s))
    if told.token_s and told.token_s[-1] == now:
        told.dropped.append((told.token_s.pop(), told.token_step.pop()))


def _preempt(told: Told, now: float, rng: random.Random) -> None:
    swapped = int(told.to_compute == 0 and rng.random() < 0.5)
    told.waits.append([now, NAN, swapped])
    if swapped:
        told.swapped_out += 2
    else:
        told.recomputed += told.input_tokens - min(told.to_compute, told.input_tokens)
        told.to_compute = told.input_tokens + len(told.token_s)


def _admit(told: Told, now: float, rng: random.Random) -> None:
    told.waits[-1][1] = now
    if told.scheduled_s != told.scheduled_s:
        told.scheduled_s = now
    if told.waits[-1][2]:
        told.swapped_in += 2
    else:
        told.cached += rng.randint(0, told.input_tokens - 1)


def _release(held: list[Told], now: float, streams: bool) -> None:
    for told in held:
        told.released_s = now
        if not streams:
            told.delivered_s = now
    held.clear()


def _step(
    story: Story,
    replica: int,
    start: float,
    end: float,
    running: list[Told],
    held: list[Told],
    waiting: int,
    preempted: int,
    rng: random.Random,
) -> ToldStep:
    """Compute something for most of the running requests and write the step down."""
    pause = rng.random() < 0.15
    decoding = [r for r in running if not r.to_compute and not (pause and rng.random() < 0.4)]
    prefilling = [r for r in running if r.to_compute and rng.random() < 0.8]
    if not decoding and not prefilling:
        first = running[0]
        (prefilling if first.to_compute else decoding).append(first)
    chunks = {r.row: min(r.to_compute, rng.randint(1, 30)) for r in prefilling}
    step = ToldStep(
        replica=replica,
        start_s=start,
        end_s=end,
        running=[r.row for r in running + held],
        held=[r.row for r in held],
        decoding=[r.row for r in decoding],
        prefilling=[r.row for r in prefilling],
        waiting=waiting,
        padded_tokens=len(held) + (rng.randint(0, 5) if prefilling else 0),
        prefill_tokens=sum(chunks.values()),
        used_blocks=min(story.num_blocks, rng.randint(1, 3) * len(running + held)),
        preempted=preempted,
    )
    story.steps.append(step)
    for told in prefilling:
        told.to_compute -= chunks[told.row]
    for told in decoding + [r for r in prefilling if not r.to_compute]:
        told.token_s.append(end)
        told.token_step.append(len(story.steps) - 1)
    return step


def single_server(arrival_s: Floats, service_s: Floats, *, slots: int = 1) -> Records:
    """First come, first served, `slots` at a time, each in one step of its own: one replica a slot, one token each."""
    n = len(arrival_s)
    start, end, server = np.empty(n), np.empty(n), np.empty(n, dtype=np.int64)
    free = [0.0] * slots
    for i, (arrival, service) in enumerate(zip(arrival_s.tolist(), service_s.tolist(), strict=True)):
        slot = min(range(slots), key=free.__getitem__)
        start[i] = max(arrival, free[slot])
        end[i] = free[slot] = start[i] + service
        server[i] = slot
    order = np.argsort(server, kind="stable")
    one, zero = np.ones(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    requests = RequestColumns(
        np.arange(n), server, zero, arrival_s, start, end, end, end, one, one, one,
        zero, zero, zero, zero, zero, zero, zero, np.zeros(n), zero,
    )  # fmt: skip
    rows = RowColumns(
        server[order], np.arange(n), one, start[order], end[order], one, zero, zero, zero, zero, one, one,
        zero, one, one, zero, zero, zero,
    )  # fmt: skip
    nothing, none = np.zeros(0), np.zeros(0, dtype=np.int64)
    gaps, requeues = GapColumns(nothing, none, nothing), RequeueColumns(none, nothing, nothing, none)
    return Records(
        requests, rows, gaps, requeues, end[order], one,
        num_blocks=1, block_size=16, max_num_seqs=1, replicas=slots, reject_reasons={}, class_names=("default",),
        request_ids=None,
    )  # fmt: skip
