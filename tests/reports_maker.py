"""Small, slow, obvious schedules that make `Records` for the report tests: one static, one continuous batch.

They stand beside the engine on purpose: a report must be right for any records of the documented shape, and these
can be bent (one request, nothing finished, a hundred thousand rows) without bending a policy.
"""

from dataclasses import dataclass, field

import numpy as np

from simulator.results.records import GapColumns, Records, RequestColumns, RequeueColumns, RowColumns, Status
from tests.columns import as_floats, as_ints

BLOCK_SIZE = 16


@dataclass
class Item:
    """A request on its way through a schedule."""

    row: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    class_index: int = 0
    status: Status = Status.UNFINISHED
    scheduled_s: float = float("nan")
    first_s: float = float("nan")
    last_s: float = float("nan")
    released_s: float = float("nan")
    tokens: int = 0
    preemptions: int = 0
    recomputed: int = 0
    requeued_s: float = 0.0

    @property
    def blocks(self) -> int:
        return -(-(self.input_tokens + self.tokens) // BLOCK_SIZE)


@dataclass
class Log:
    """Rows as they happen, neighbouring equal decode steps folded at the end."""

    rows: list[dict[str, float]] = field(default_factory=list)
    step_end_s: list[float] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    gaps: dict[tuple[float, float], int] = field(default_factory=dict)
    requeues: list[list[float]] = field(default_factory=list)

    def step(self, start_s: float, end_s: float, used: int, *, fold: bool, **counts: int) -> None:
        last = self.rows[-1] if self.rows else None
        if fold and last is not None and last["decoding"] and not last["prefilling"] and last["end_s"] == start_s:
            last["repeat"] += 1
            last["end_s"] = end_s
        else:
            self.rows.append({"first_step": len(self.used), "repeat": 1, "start_s": start_s, "end_s": end_s, **counts})
        self.step_end_s.append(end_s)
        self.used.append(used)

    def column(self, name: str) -> list[float]:
        return [row.get(name, 0) for row in self.rows]

    def records(
        self, items: list[Item], *, max_num_seqs: int, num_blocks: int, classes: tuple[str, ...], streams: bool = True
    ) -> Records:
        zeros = as_ints([0] * len(items))
        requests = RequestColumns(
            row=as_ints([i.row for i in items]),
            replica=as_ints([-1 if i.status is Status.REJECTED else 0 for i in items]),
            status=as_ints([int(i.status) for i in items]),
            arrival_s=as_floats([i.arrival_s for i in items]),
            scheduled_s=as_floats([i.scheduled_s for i in items]),
            first_token_s=as_floats([i.first_s for i in items]),
            last_token_s=as_floats([i.last_s for i in items]),
            released_s=as_floats([i.released_s for i in items]),
            input_tokens=as_ints([i.input_tokens for i in items]),
            output_tokens=as_ints([i.tokens for i in items]),
            max_tokens=as_ints([i.output_tokens for i in items]),
            priority=zeros,
            class_index=as_ints([i.class_index for i in items]),
            preemptions=as_ints([i.preemptions for i in items]),
            recomputed_tokens=as_ints([i.recomputed for i in items]),
            swapped_out_blocks=zeros,
            swapped_in_blocks=zeros,
            cached_tokens=zeros,
            requeued_s=as_floats([i.requeued_s for i in items]),
            aborted_tokens=zeros,
        )
        gaps = sorted(self.gaps.items()) if streams else []
        requeues = np.array(self.requeues, dtype=np.float64).reshape(-1, 4)
        return Records(
            requests=requests,
            rows=RowColumns(
                replica=as_ints([0] * len(self.rows)),
                first_step=as_ints(self.column("first_step")),
                repeat=as_ints(self.column("repeat")),
                start_s=as_floats(self.column("start_s")),
                end_s=as_floats(self.column("end_s")),
                running=as_ints(self.column("running")),
                held=as_ints(self.column("held")),
                waiting=as_ints(self.column("waiting")),
                swapped=as_ints(self.column("swapped")),
                decoding=as_ints(self.column("decoding")),
                prefilling=as_ints(self.column("prefilling")),
                tokens=as_ints(self.column("tokens")),
                padded_tokens=as_ints(self.column("padded_tokens")),
                prefill_tokens=as_ints(self.column("prefill_tokens")),
                context_tokens=as_ints(self.column("context_tokens")),
                preempted=as_ints(self.column("preempted")),
                swapped_out_blocks=as_ints(self.column("swapped_out_blocks")),
                swapped_in_blocks=as_ints(self.column("swapped_in_blocks")),
            ),
            gaps=GapColumns(
                gap_s=as_floats([gap for (gap, _), _ in gaps]),
                count=as_ints([count for _, count in gaps]),
                end_s=as_floats([end for (_, end), _ in gaps]),
            ),
            requeues=RequeueColumns(
                row=requeues[:, 0].astype(np.int64),
                from_s=requeues[:, 1],
                to_s=requeues[:, 2],
                swapped=requeues[:, 3].astype(np.int64),
            ),
            step_end_s=as_floats(self.step_end_s),
            step_used_blocks=as_ints(self.used),
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            replicas=1,
            reject_reasons={i.row: "larger than the KV cache" for i in items if i.status is Status.REJECTED},
            class_names=classes,
            request_ids=None,
            streams=streams,
        )


def step_s(tokens: int, context: int) -> float:
    return 0.006 + 6e-5 * tokens + 1.5e-7 * context


def make_items(requests: int, rate: float, seed: int, classes: int = 1) -> list[Item]:
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, requests))
    inputs = np.clip(rng.lognormal(5.5, 0.9, requests), 4, 4000).astype(int)
    outputs = np.where(rng.random(requests) < 0.5, rng.integers(1, 12, requests), rng.integers(80, 400, requests))
    rows = zip(arrival.tolist(), inputs.tolist(), outputs.tolist(), strict=True)
    return [Item(row, a, i, o, class_index=row % classes) for row, (a, i, o) in enumerate(rows)]


def continuous(
    requests: int = 200,
    rate: float = 6.0,
    seed: int = 0,
    *,
    max_num_seqs: int = 16,
    num_blocks: int = 100_000,
    classes: tuple[str, ...] = ("default",),
    prefill_first: bool = True,
) -> Records:
    """Iteration level: whole prompts in steps of their own (or mixed with decodes), recompute when blocks run out."""
    items = make_items(requests, rate, seed, len(classes))
    log, now, upcoming = Log(), 0.0, list(items)
    waiting: list[Item] = []
    running: list[Item] = []
    paused: dict[int, float] = {}
    changed = True
    while upcoming or waiting or running:
        while upcoming and upcoming[0].arrival_s <= now:
            item = upcoming.pop(0)
            if -(-(item.input_tokens + item.output_tokens) // BLOCK_SIZE) > num_blocks:
                item.status = Status.REJECTED
            else:
                waiting.append(item)
        if not waiting and not running:
            if not upcoming:
                break
            now = upcoming[0].arrival_s
            continue
        preempted = 0
        while running and sum(i.blocks + 1 for i in running) > num_blocks:
            victim = running.pop()
            victim.preemptions += 1
            victim.recomputed += victim.input_tokens + victim.tokens
            paused[victim.row] = now
            waiting.insert(0, victim)
            preempted += 1
        admitted: list[Item] = []
        used = sum(i.blocks + 1 for i in running)
        while waiting and not preempted and len(running) + len(admitted) < max_num_seqs:
            head = waiting[0]
            used += head.blocks + 1
            if used > num_blocks or sum(i.input_tokens for i in admitted) + head.input_tokens > 8192:
                break
            admitted.append(waiting.pop(0))
        decoding = [] if admitted and prefill_first else list(running)
        prompt = sum(i.input_tokens + i.tokens for i in admitted)
        context = sum(i.input_tokens + i.tokens for i in running + admitted)
        start, now = now, now + step_s(prompt + len(decoding), context)
        for item in admitted:
            if item.row in paused:
                since = paused.pop(item.row)
                item.requeued_s += start - since
                log.requeues.append([item.row, since, start, 0])
            else:
                item.scheduled_s = start
        running += admitted
        for item in decoding + admitted:
            item.tokens += 1
            if item.tokens == 1:
                item.first_s = now
            elif admitted or changed or preempted:
                gap = now - item.last_s
                log.gaps[gap, now] = log.gaps.get((gap, now), 0) + 1
            item.last_s = now
        log.step(
            start, now, sum(i.blocks for i in running), fold=not (admitted or changed or preempted),
            running=len(running), waiting=len(waiting), decoding=len(decoding), prefilling=len(admitted),
            tokens=prompt + len(decoding), prefill_tokens=prompt, context_tokens=context, preempted=preempted,
        )  # fmt: skip
        done = [i for i in running if i.tokens == i.output_tokens]
        for item in done:
            item.released_s, item.status = now, Status.FINISHED
        running = [i for i in running if i.tokens < i.output_tokens]
        changed = bool(done) or bool(admitted) or bool(preempted)
    return log.records(items, max_num_seqs=max_num_seqs, num_blocks=num_blocks, classes=classes)


def static(
    requests: int = 200,
    rate: float = 6.0,
    seed: int = 0,
    *,
    max_num_seqs: int = 16,
    num_blocks: int = 100_000,
    classes: tuple[str, ...] = ("default",),
    stream: bool = True,
) -> Records:
    """Batches that admit nobody until they are empty; prompts padded to the longest, the finished held."""
    items = make_items(requests, rate, seed, len(classes))
    log, now, upcoming = Log(), 0.0, list(items)
    while upcoming:
        now = max(now, upcoming[0].arrival_s)
        batch = [i for i in upcoming if i.arrival_s <= now][:max_num_seqs]
        upcoming = upcoming[len(batch) :]
        waiting = sum(i.arrival_s <= now for i in upcoming)
        longest_in, longest_out = max(i.input_tokens for i in batch), max(i.output_tokens for i in batch)
        used = len(batch) * -(-(longest_in + longest_out) // BLOCK_SIZE)
        for index in range(longest_out):
            live = [i for i in batch if i.tokens < i.output_tokens]
            tokens = len(batch) * longest_in if index == 0 else len(batch)
            real = sum(i.input_tokens for i in batch) if index == 0 else len(live)
            start, now = now, now + step_s(tokens, len(batch) * (longest_in + index))
            for item in live:
                item.tokens += 1
                if item.tokens == 1:
                    item.scheduled_s, item.first_s = start, now
                elif index:
                    gap = now - item.last_s
                    log.gaps[gap, now] = log.gaps.get((gap, now), 0) + 1
                item.last_s = now
            log.step(
                start, now, used, fold=False, running=len(batch), held=len(batch) - len(live), waiting=waiting,
                decoding=len(live) if index else 0, prefilling=0 if index else len(batch), tokens=tokens,
                padded_tokens=tokens - real, prefill_tokens=0 if index else real,
                context_tokens=len(batch) * (longest_in + index),
            )  # fmt: skip
        for item in batch:
            item.released_s, item.status = now, Status.FINISHED
            if not stream:
                item.first_s = item.last_s = now
    return log.records(items, max_num_seqs=max_num_seqs, num_blocks=num_blocks, classes=classes, streams=stream)
