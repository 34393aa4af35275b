"""The metrics once more, slowly: loops over every token, step and wait of a `Story`, one line a definition."""

import math
from collections.abc import Callable

import numpy as np

from simulator.metrics.latency import Slo
from simulator.results.records import Status
from tests.story import Story, Told, ToldStep

Value = float | int | bool | None


def naive_summary(story: Story, slo: Slo | None, warmup_s: float, cooldown_s: float) -> dict[str, Value]:
    """All but `saturated`, which is a judgement and has tests of its own."""
    arrivals = [r.arrival_s for r in story.requests]
    measured = [r for r in story.requests if min(arrivals) + warmup_s <= r.arrival_s <= max(arrivals) - cooldown_s]
    done = [r for r in measured if r.status is Status.FINISHED]
    start = min(r.arrival_s for r in measured)
    aborted = [r for r in measured if r.status is Status.ABORTED]
    end = max([last_s(story, r) for r in done] + [r.released_s for r in aborted], default=start)
    if any(r.status is Status.UNFINISHED for r in measured):
        end = story.end_s()
    seconds = end - start
    inputs, outputs = sum(r.input_tokens for r in done), sum(len(r.token_s) for r in done)
    limits = slo is not None and any(has_limits(each) for each in (slo, *slo.classes.values()))
    good = sum(is_good(story, r, slo) for r in measured) if slo is not None and limits else None
    everything = warmup_s == 0 and cooldown_s == 0
    steps = [s for s in story.steps if everything or start <= s.end_s <= end]
    return {
        "completed": len(done),
        "duration": seconds,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": over(len(done), seconds),
        "output_throughput": over(outputs, seconds),
        "total_token_throughput": over(inputs + outputs, seconds),
        "request_goodput": None if good is None else over(good, seconds),
        **statistics("ttft_ms", [first_s(story, r) - r.arrival_s for r in done]),
        **statistics("tpot_ms", [tpot_s(r) for r in done if len(r.token_s) > 1] if story.streams else []),
        **statistics("itl_ms", itl_s(story, *((-math.inf, math.inf) if everything else (start, end)))),
        **statistics("e2el_ms", [last_s(story, r) - r.arrival_s for r in done]),
        **statistics("queue_time_ms", [r.scheduled_s - r.arrival_s for r in done]),
        **naive_usage(story, steps, start, end),
        **naive_queue(story, start, end),
        "preemptions": sum(max(r.preemptions, 0) for r in measured),
        "recomputed_tokens": sum(r.recomputed for r in measured),
        "swapped_out_blocks": sum(r.swapped_out for r in measured),
        "swapped_in_blocks": sum(r.swapped_in for r in measured),
        "prefix_cache_hit_rate": over(
            sum(r.cached for r in measured),
            sum(r.input_tokens * sum(to == to and not swapped for _, to, swapped in r.waits) for r in measured),
        ),
        "rejected": sum(r.status is Status.REJECTED for r in measured),
        "unfinished": sum(r.status is Status.UNFINISHED for r in measured),
        "aborted": len(aborted),
        "aborted_output_tokens": sum(len(r.token_s) for r in aborted),
        "aborted_computed_tokens": sum(r.aborted_tokens for r in aborted),
        "slo_attainment": None if good is None else good / len(measured),
        **naive_evenness(story, measured, done),
    }


def naive_evenness(story: Story, measured: list[Told], done: list[Told]) -> dict[str, Value]:
    """Of tokens served: over replicas, and over the classes that ask for any."""

    def served(part: Callable[[Told], int], which: int) -> int:
        return sum(r.input_tokens + len(r.token_s) for r in done if part(r) == which)

    replicas = [served(lambda r: r.replica, replica) for replica in range(story.replicas)]
    classes = [served(lambda r: r.class_index, index) for index in sorted({r.class_index for r in measured})]
    by_replica = len(replicas) > 1 and any(replicas)
    by_class = len(classes) > 1 and any(classes)
    mean = sum(replicas) / len(replicas)
    return {
        "balance_cv": math.sqrt(sum((x - mean) ** 2 for x in replicas) / len(replicas)) / mean if by_replica else None,
        "balance_max_over_mean": max(replicas) / mean if by_replica else None,
        "balance_jain": sum(replicas) ** 2 / (len(replicas) * sum(x * x for x in replicas)) if by_replica else None,
        "fairness_jain": sum(classes) ** 2 / (len(classes) * sum(x * x for x in classes)) if by_class else None,
        "fairness_min_over_max": min(classes) / max(classes) if by_class else None,
    }


def naive_usage(story: Story, steps: list[ToldStep], start: float, end: float) -> dict[str, Value]:
    seconds, replicas = end - start, story.replicas

    def time_weighted(weight: Callable[[ToldStep], float]) -> float:
        return sum(max(min(s.end_s, end) - max(s.start_s, start), 0.0) * weight(s) for s in story.steps)

    return {
        "num_steps": len(steps),
        "mean_batch_size": over(sum(len(s.decoding) + len(s.prefilling) for s in steps), len(steps)),
        "batch_occupancy": over(time_weighted(lambda s: len(s.running)), seconds * story.max_num_seqs * replicas),
        "busy_fraction": over(time_weighted(lambda s: 1), seconds * replicas),
        "wasted_slot_fraction": over(sum(len(s.held) for s in steps), sum(len(s.running) for s in steps)),
        "padding_fraction": over(sum(s.padded_tokens for s in steps), sum(s.tokens for s in steps)),
        "kv_utilization_mean": over(time_weighted(lambda s: s.used_blocks), seconds * story.num_blocks * replicas),
        "kv_utilization_peak": max(s.used_blocks for s in steps) / story.num_blocks if steps else None,
    }


def naive_queue(story: Story, start: float, end: float) -> dict[str, Value]:
    """The depth at every time at which anything changes; it is constant in between."""
    waits = wait_times(story)
    times = sorted({t for wait in waits for t in wait if start <= t < end} | {start, end})
    depths = [depth(waits, t) for t in times]
    area = sum(d * (b - a) for d, a, b in zip(depths, times, times[1:], strict=False))
    return {"queue_depth_mean": over(area, end - start), "queue_depth_max": max(depths[:-1] or depths)}


def wait_times(story: Story) -> list[tuple[float, float]]:
    return [(a, b if b == b else story.left_s(r)) for r in story.requests for a, b, _ in r.waits]


def depth(waits: list[tuple[float, float]], t: float) -> int:
    return sum(a <= t < b for a, b in waits)


def itl_s(story: Story, start: float, end: float) -> list[float]:
    """Every gap that ends in the window, if tokens are streamed at all."""
    if not story.streams:
        return []
    gaps = [(b - a, b) for r in story.requests for a, b in zip(r.token_s, r.token_s[1:], strict=False)]
    return [gap for gap, ends in gaps if start <= ends <= end]


def first_s(story: Story, told: Told) -> float:
    return told.token_s[0] if story.streams else told.delivered_s


def last_s(story: Story, told: Told) -> float:
    return told.token_s[-1] if story.streams else told.delivered_s


def tpot_s(told: Told) -> float:
    return (told.token_s[-1] - told.token_s[0]) / (len(told.token_s) - 1)


def has_limits(slo: Slo) -> bool:
    return (slo.ttft_ms, slo.tpot_ms, slo.e2el_ms, slo.queue_time_ms) != (None, None, None, None)


def is_good(story: Story, told: Told, slo: Slo) -> bool:
    """But for the gaps between tokens, which have tests of their own."""
    if told.status is not Status.FINISHED:
        return False
    own = slo.classes.get(f"class {told.class_index}", slo)
    slo = own if has_limits(own) else slo
    tpot = tpot_s(told) if story.streams and len(told.token_s) > 1 else 0.0
    queue = told.scheduled_s - told.arrival_s
    found = (first_s(story, told) - told.arrival_s, tpot, last_s(story, told) - told.arrival_s, queue)
    limits = (slo.ttft_ms, slo.tpot_ms, slo.e2el_ms, slo.queue_time_ms)
    return all(limit is None or value <= limit / 1000 for value, limit in zip(found, limits, strict=True))


def statistics(name: str, seconds: list[float]) -> dict[str, Value]:
    names = [f"{s}_{name}" for s in ("mean", "median", "std", "p50", "p90", "p95", "p99")]
    if not seconds:
        return dict.fromkeys(names)
    ms = np.array(seconds) * 1000
    values = [np.mean(ms), np.median(ms), np.std(ms), *np.percentile(ms, (50, 90, 95, 99))]
    return dict(zip(names, map(float, values), strict=True))


def over(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def same(a: Value, b: Value) -> bool:
    """Equal to 1e-9, relative; counts and what is undefined exactly."""
    if a is None or b is None or isinstance(a, int) or isinstance(b, int):
        return a == b and type(a) is type(b)
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
