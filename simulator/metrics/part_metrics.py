"""Metrics of what some runs have: adapters, drafts, KV beyond GPUs, a gateway, regret, tasks, energy, hits."""

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np

from simulator.division import cdiv
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.metrics.client_metrics import Tasks
from simulator.metrics.metric import FRACTION, MS, REQUESTS, Metric, Sample, Value
from simulator.metrics.window import Bools, Window, measured_window, present_s
from simulator.request import Request
from simulator.results.records import CopyColumns, DraftColumns, Floats, Ints, Passage, Records

# Metrics of what some runs have: adapters, drafts, KV beyond GPUs, a gateway, a router's regret, tasks, energy.

# Metrics of LoRA adapters: how often one had to be loaded, and how long requests were shut out.


def _of_adapters(value: Callable[[Ints, Floats], float]) -> Callable[[Sample], Value]:
    """A value of the admissions of measured requests: whether they load, and for how long they were shut out."""

    def metric(sample: Sample) -> Value:
        adapters = sample.records.adapters
        if adapters is None:
            return None
        measured = sample.measured[adapters.row]
        loaded, shut_out_s = adapters.loaded[measured], adapters.shut_out_s[measured]
        return value(loaded, shut_out_s) if len(loaded) else None

    return metric


ADAPTER_METRICS = (
    Metric(
        "lora_loads", "adapters loaded", "", "admissions for which an adapter was copied to the GPU",
        _of_adapters(lambda loaded, _: int(loaded.sum())), better=-1, is_rare=True,
    ),
    Metric(
        "lora_hit_rate", "adapters there", FRACTION, "admissions whose adapter lay on the GPU / those with an adapter",
        _of_adapters(lambda loaded, _: 1 - float(loaded.mean())), better=1, is_rare=True,
    ),
    Metric(
        "lora_shut_out_rate", "shut out", FRACTION,
        "admissions that waited while other adapters took all slots / those with an adapter",
        _of_adapters(lambda _, shut_out_s: float((shut_out_s > 0).mean())), better=-1, is_rare=True,
    ),
    Metric(
        "mean_lora_shut_out_ms", "shut out mean", MS, "time in the queue with all slots taken by other adapters, mean",
        _of_adapters(lambda _, shut_out_s: float(shut_out_s.mean()) * 1e3), better=-1, is_rare=True,
        remark="of admissions with an adapter; a part of the queue time",
    ),
    Metric(
        "p99_lora_shut_out_ms", "shut out p99", MS, "99th percentile of that time",
        _of_adapters(lambda _, shut_out_s: float(np.percentile(shut_out_s, 99)) * 1e3), better=-1, is_rare=True,
    ),
)  # fmt: skip


# Metrics of speculative decoding, over the verify steps of measured requests; vLLM's `bench serve` names them so.

PER_POSITION = "spec_decode_per_position_acceptance_rates"
"""The entry of summary.json with a list: the share of verify steps in which at least 1, 2, ... drafts are accepted."""


def _weights(sample: Sample) -> tuple[DraftColumns, Ints] | None:
    """The counts of drafts, and the verify steps of each that are of measured requests; None where nothing drafts."""
    drafts = sample.records.drafts
    return None if drafts is None else (drafts, drafts.steps * sample.measured[drafts.row])


def num_drafts(sample: Sample) -> Value:
    """Verify steps, one for each request in each step."""
    found = _weights(sample)
    return None if found is None else int(found[1].sum())


def draft_tokens(sample: Sample) -> Value:
    """Drafts that were verified."""
    found = _weights(sample)
    return None if found is None else int(found[0].drafts @ found[1])


def accepted_tokens(sample: Sample) -> Value:
    """Drafts that were accepted."""
    found = _weights(sample)
    return None if found is None else int(found[0].accepted @ found[1])


def wasted_tokens(sample: Sample) -> Value:
    """Drafts that were verified in vain."""
    found = _weights(sample)
    return None if found is None else int((found[0].drafts - found[0].accepted) @ found[1])


def acceptance_length(sample: Sample) -> Value:
    """1 + accepted drafts of a verify step, mean."""
    found = _weights(sample)
    steps = 0 if found is None else int(found[1].sum())
    return None if found is None or not steps else 1 + float(found[0].accepted @ found[1]) / steps


def acceptance_rate(sample: Sample) -> Value:
    """Accepted drafts in per cent of all drafts."""
    found = _weights(sample)
    drafts = 0 if found is None else int(found[0].drafts @ found[1])
    return None if found is None or not drafts else 100 * float(found[0].accepted @ found[1]) / drafts


def tokens_per_step(sample: Sample) -> Value:
    """Output tokens of all requests over the steps of the engine, where something drafts."""
    steps = len(sample.records.step_end_s)
    if sample.records.drafts is None or not steps:
        return None
    return float(sample.records.requests.output_tokens.sum()) / steps


DRAFT_METRICS = (
    Metric(
        "spec_decode_acceptance_length", "acceptance length", "tokens",
        "1 + accepted drafts / verify steps", acceptance_length, better=1,
        remark="the model's own token among them, as in vLLM; cut at the end of an answer it is less", is_rare=True,
    ),
    Metric(
        "spec_decode_acceptance_rate", "accepted", "%", "accepted drafts / drafts x 100", acceptance_rate, better=1,
        is_rare=True,
    ),
    Metric(
        "spec_decode_num_drafts", "verify steps", "", "verify steps, one for each request in each step", num_drafts,
        is_rare=True,
    ),
    Metric(
        "spec_decode_draft_tokens", "drafts", "tokens", "drafts that were verified", draft_tokens,
        remark="the padding of vLLM's 1-token admissions among them", is_rare=True,
    ),
    Metric(
        "spec_decode_accepted_tokens", "accepted drafts", "tokens", "drafts that were accepted", accepted_tokens,
        is_rare=True,
    ),
    Metric(
        "spec_decode_wasted_tokens", "wasted drafts", "tokens", "drafts that were verified and rejected",
        wasted_tokens, better=-1, is_rare=True,
    ),
    Metric(
        "output_tokens_per_step", "tokens a step", "tokens", "output tokens / steps, of the whole run",
        tokens_per_step, better=1, is_rare=True,
    ),
)  # fmt: skip


def acceptance_by_position(records: Records, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Mapping[str, Any]:
    """Return the entry `PER_POSITION`; nothing where no drafts were verified."""
    drafts = records.drafts
    if drafts is None:
        return {}
    steps = drafts.steps * measured_window(records, warmup_s, cooldown_s).measured[drafts.row]
    positions = range(int(drafts.drafts.max()))
    accepted: Floats = np.array([steps[drafts.accepted > place].sum() for place in positions], dtype=np.float64)
    return {PER_POSITION: (accepted / steps.sum()).tolist()} if steps.sum() else {}


# Metrics of KV beyond the GPUs: what measured requests found in each tier, what was copied, how busy links were.

Figure = Callable[[CopyColumns, Bools, Sample], float]
_PLACES = ("the host", "the first further tier", "the second further tier")


def _of_tier(tier: int, stored: int, value: Figure) -> Callable[[Sample], Value]:
    def metric(sample: Sample) -> Value:
        copies = sample.records.copies
        if copies is None or not (copies.tier == tier).any():
            return None
        return value(copies, (copies.tier == tier) & (copies.stored == stored), sample)

    return metric


def _gib(copies: CopyColumns, chosen: Bools, sample: Sample) -> float:
    return float(copies.bytes[chosen & sample.measured[copies.row]].sum()) / 2**30


def _hit_rate(copies: CopyColumns, chosen: Bools, sample: Sample) -> float:
    requests = sample.records.requests
    found = copies.tokens[chosen & sample.measured[copies.row]].sum()
    asked = requests.input_tokens[sample.measured & (requests.scheduled_s == requests.scheduled_s)].sum()
    return float(found / asked) if asked else 0.0


def _busy(copies: CopyColumns, chosen: Bools, sample: Sample) -> float:
    ends_s = sample.records.step_end_s
    whole_s = (float(ends_s.max()) if len(ends_s) else 0.0) * sample.records.replicas
    return float((copies.end_s - copies.start_s)[chosen].sum()) / whole_s if whole_s else 0.0


def loaded_tokens(records: Records) -> Ints:
    """For every request, the tokens whose KV was loaded from the host, at all its admissions."""
    copies, rows = records.copies, len(records.requests.row)
    if copies is None:
        return np.zeros(rows, dtype=np.int64)
    chosen = (copies.tier == 0) & (copies.stored == 0)
    return np.bincount(copies.row[chosen], copies.tokens[chosen], rows).astype(np.int64)


def _metrics(tier: int) -> tuple[Metric, ...]:
    key, place = f"kv_tier_{tier}" if tier else "kv_offload", _PLACES[tier]
    rare = partial(Metric, is_rare=True)
    busy = "seconds of a replica's copies {} / its run; more than 1 where latencies pass beside each other"
    busy = busy if tier else "share of the run in which a replica's link copies {}"
    return (
        rare(
            f"{key}_hit_rate", f"found {'in' if tier else 'on'} {place}", "",
            f"prompt tokens loaded from {place} / prompt tokens", _of_tier(tier, 0, _hit_rate), better=1,
            remark="it comes through the host, and counts as found there too" if tier else
            "beside prefix_cache_hit_rate, which is the GPUs'; all admissions together",
        ),
        rare(f"{key}_load_gib", "KV loaded", "GiB", f"KV copied from {place}", _of_tier(tier, 0, _gib)),
        rare(f"{key}_store_gib", "KV stored", "GiB", f"KV copied to {place}", _of_tier(tier, 1, _gib)),
        rare(f"{key}_load_busy", "loads", "", busy.format(f"from {place}"), _of_tier(tier, 0, _busy)),
        rare(f"{key}_store_busy", "stores", "", busy.format(f"to {place}"), _of_tier(tier, 1, _busy)),
    )  # fmt: skip


COPY_METRICS = tuple(metric for tier in range(len(_PLACES)) for metric in _metrics(tier))


# Metrics of a gateway's flow control: who waited there, and who was turned away.


def _of_passage(value: Callable[[Floats, Ints], float | None]) -> Callable[[Sample], Value]:
    """A value of the waits of measured requests in ms, and of how each left."""

    def metric(sample: Sample) -> Value:
        passages = sample.records.passages
        if passages is None:
            return None
        measured = sample.measured[passages.row]
        return value(1e3 * passages.wait_s[measured], passages.passage[measured]) if measured.any() else None

    return metric


def _waits(summed: Callable[[Floats], float]) -> Callable[[Sample], Value]:
    """A sum of the waits of those that went on to a replica."""

    def value(waits: Floats, passage: Ints) -> float | None:
        passed = waits[passage == Passage.DISPATCHED]
        return float(summed(passed)) if len(passed) else None

    return _of_passage(value)


GATEWAY_METRICS = (
    Metric(
        "mean_gateway_wait_ms", "gateway wait mean", MS, "time in the gateway's queue, of requests that a replica got",
        _waits(np.mean), better=-1, by_class=True, is_rare=True,
    ),
    Metric(
        "p99_gateway_wait_ms", "gateway wait p99", MS, "99th percentile of that time",
        _waits(lambda waits: np.percentile(waits, 99)), better=-1, by_class=True, is_rare=True,
    ),
    Metric(
        "gateway_held_rate", "held at the gateway", FRACTION, "requests that had to wait at the gateway / requests",
        _of_passage(lambda waits, _: float((waits > 0).mean())), better=-1, by_class=True, is_rare=True,
    ),
    Metric(
        "gateway_shed", "shed", REQUESTS, "requests that found the gateway's queue full",
        _of_passage(lambda _, passage: int((passage == Passage.SHED).sum())), better=-1, by_class=True, is_rare=True,
    ),
    Metric(
        "gateway_expired", "expired", REQUESTS, "requests that waited at the gateway for all their time to live",
        _of_passage(lambda _, passage: int((passage == Passage.EXPIRED).sum())), better=-1, by_class=True, is_rare=True,
    ),
)  # fmt: skip


# Metrics of a router's regret: what the best replica for each request had, and the chosen one had not.


def _of_regrets(value: Callable[[Ints, Ints, Ints], float]) -> Callable[[Sample], Value]:
    """A value of measured requests: cached tokens that the choice lost, prompt tokens, and the longer queue."""

    def metric(sample: Sample) -> Value:
        regrets = sample.records.regrets
        if regrets is None:
            return None
        measured = sample.measured[regrets.row]
        lost = (regrets.most_cached_tokens - regrets.cached_tokens)[measured]
        longer = (regrets.unfinished - regrets.fewest_unfinished)[measured]
        prompts = sample.records.requests.input_tokens[regrets.row[measured]]
        return value(lost, prompts, longer) if len(lost) else None

    return metric


REGRET_METRICS = (
    Metric(
        "overlap_lost_rate", "overlap lost", FRACTION,
        "prompt tokens in the fullest cache for the request, but not in the chosen replica's / prompt tokens",
        _of_regrets(lambda lost, prompts, _: int(lost.sum()) / int(prompts.sum())), better=-1, is_rare=True,
    ),
    Metric(
        "overlap_missed", "best cache missed", FRACTION, "requests for which another replica had more in its cache",
        _of_regrets(lambda lost, _, __: float((lost > 0).mean())), better=-1, is_rare=True,
    ),
    Metric(
        "mean_queue_excess", "queue excess mean", "requests",
        "unfinished requests on the chosen replica less those on the one with the fewest, mean over requests",
        _of_regrets(lambda _, __, longer: float(longer.mean())), better=-1, is_rare=True,
    ),
    Metric(
        "p99_queue_excess", "queue excess p99", "requests", "99th percentile of that difference",
        _of_regrets(lambda _, __, longer: float(np.percentile(longer, 99))), better=-1, is_rare=True,
    ),
)  # fmt: skip


# Metrics of agents' tasks: from the first request of a task to its last answer, with tools and sub-agents between.


def _of_tasks(value: Callable[[Tasks], Value]) -> Callable[[Sample], Value]:
    return lambda sample: None if sample.tasks is None else value(sample.tasks)


def _mean(column: str) -> Callable[[Sample], Value]:
    return _of_tasks(lambda found: float(getattr(found, column).mean()) if len(found.seconds) else None)


def _percentile(percent: int) -> Callable[[Sample], Value]:
    return _of_tasks(lambda found: float(np.percentile(found.seconds, percent)) if len(found.seconds) else None)


_DONE = "of tasks that are done"

TASK_METRICS = (
    Metric(
        "tasks", "tasks", "", "tasks of agents whose first request is measured", _of_tasks(lambda found: found.tasks),
        by_class=True, is_rare=True,
    ),
    Metric(
        "tasks_done", "tasks done", "", "tasks of which every request was answered",
        _of_tasks(lambda found: len(found.seconds)), better=1, by_class=True, is_rare=True,
    ),
    Metric(
        "mean_task_s", "task mean", "s", "a task's first arrival to its last token, mean", _mean("seconds"),
        better=-1, remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "p50_task_s", "task p50", "s", "p50 of a task's first arrival to its last token", _percentile(50),
        better=-1, remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "p99_task_s", "task p99", "s", "p99 of a task's first arrival to its last token", _percentile(99),
        better=-1, remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "mean_task_requests", "requests of a task", "", "answered requests of a task, mean", _mean("requests"),
        remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "mean_task_input_tokens", "input of a task", "tokens", "prompt tokens of a task, mean", _mean("input_tokens"),
        remark=_DONE, by_class=True, is_rare=True,
    ),
    Metric(
        "mean_task_output_tokens", "output of a task", "tokens", "generated tokens of a task, mean",
        _mean("output_tokens"), remark=_DONE, by_class=True, is_rare=True,
    ),
)  # fmt: skip


# Energy of a run's GPUs: rough, from a power limit and public measurements of what share of it is drawn when.
#
# - Idle, with a model loaded: 14 to 18 % of the limit. A CUDA context draws 26 to 50 W more than bare idle on GPUs
# with HBM (H100, A100: The Model Parking Tax, arXiv:2605.23918); a bare H200 of 700 W was measured at 74 W
# (conservemode.com, case studies).
# - Busy: 300 W of an H100's 700 at a batch of one and 600 W at 128 (ML.ENERGY Benchmark 3.0, as quoted by vLLM's
# semantic router, fleet-sim, "Power Model"). Between them the share grows here with the logarithm of the tokens of
# a step, and stays from 128 tokens on, so that prompts draw 600 W. Other GPUs are taken to draw the same shares of
# their limits.
#
# The interval has all busy time at the least of these, and at the whole limit.

IDLE = (0.14, 0.16, 0.18)  # shares of the limit: low, taken, high
LEAST, MOST, WHOLE = 300 / 700, 600 / 700, 1.0
FULL_TOKENS = 128

TDP_W = {
    "h200": 700, "h100": 700, "h20": 400, "b200": 1000, "b300": 1400, "gb200": 1200, "gb300": 1400, "a100-80gb": 400,
    "a100-40gb": 400, "l40s": 350, "l4": 72, "a10g": 150, "rtx-4090": 450, "rtx-5090": 575, "rtx-pro-6000": 600,
    "mi300x": 750,
}  # fmt: skip
"""Power limits of the datasheets that `simulator.hardware.gpus` names, in watts."""


@dataclass(frozen=True, slots=True)
class Joules:
    """Energy of a run, and the interval that its sources leave."""

    taken: float
    low: float
    high: float


def joules(records: Records, window: Window, limits_w: Sequence[float]) -> Joules:
    """The energy of all replicas in a window; `limits_w` is the power limit of each replica's GPUs together."""
    rows, limit_w = records.rows, np.asarray(limits_w, dtype=np.float64)
    busy_s = np.clip(np.minimum(rows.end_s, window.end_s) - np.maximum(rows.start_s, window.start_s), 0.0, None)
    grown = np.log2(np.clip(rows.tokens, 1, FULL_TOKENS)) / np.log2(FULL_TOKENS)
    limit_s = np.bincount(rows.replica, busy_s, records.replicas) @ limit_w
    busy = float((busy_s * (LEAST + (MOST - LEAST) * grown)) @ limit_w[rows.replica])
    present = present_s(records, window)
    idle_s = float(np.clip(present - np.bincount(rows.replica, busy_s, records.replicas), 0.0, None) @ limit_w)
    low, taken, high = (share * idle_s for share in IDLE)
    return Joules(busy + taken, float(limit_s) * LEAST + low, float(limit_s) * WHOLE + high)


_ROUGH = "rough: docs/reference.md, energy"
ENERGY_METRICS = (
    Metric(
        "joules_per_output_token", "energy", "J/tok", "energy of the GPUs, idle ones included / output tokens", None,
        better=-1, remark=_ROUGH, is_rare=True,
    ),
    Metric(
        "joules_per_output_token_low", "energy, at least", "J/tok", "the same, all busy time at a batch of one", None,
        better=-1, is_rare=True,
    ),
    Metric(
        "joules_per_output_token_high", "energy, at most", "J/tok", "the same, all busy time at the power limit", None,
        better=-1, is_rare=True,
    ),
    Metric(
        "grams_co2_per_million_output_tokens", "CO2", "g/M tok", "that energy x the grid's grams per kWh", None,
        better=-1, remark=_ROUGH, is_rare=True,
    ),
)  # fmt: skip


# The most prefix hits that caches could have had that know the future: Belady's rule, for the times of one run.
#
# The bound is proven for one memory of blocks. When a request finds a block, its replica has kept the block from
# some time on, as it entered; so it kept it since the last stay of a request that has it ended (before, the
# request's own use kept it), up to the look-up. No more such stretches can lie over one moment than the memory has
# blocks. So the hits are at most the most stretches, from the last end to the next look-up of a block, of which no
# more than so many ever overlap. Among equal ones that is found by dropping, where there are too many, the one that
# ends last (L. A. Belady, IBM Systems Journal 5:2 (1966), 78-101; as scheduling of intervals: U. Faigle and W.
# Nawijn, Discrete Applied Mathematics 58 (1995), 13-17). What real caches have beside is left out: memory in use by
# running requests, blocks without those before them, and the places of what is decoded alone. It only takes hits
# away.
#
# With one memory as large as those of all replicas, and all requests in it, the bound holds for every router under
# which requests would be scheduled and end when they did here; with one that forgets nothing for every order of
# evictions too.

Stretch = tuple[float, float, int]
"""From when to when so many blocks have to be kept, so that each is found."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """Shares of the prompt tokens that were looked up: found at most, by three kinds of memory.

    `own`: each replica's, with the router's choices. `pooled`: one as large as all together. `unlimited`: one that
    forgets nothing. The last two are None where replicas have blocks of unlike size.
    """

    own: float
    pooled: float | None
    unlimited: float | None


class _Stay(NamedTuple):
    """A request on a replica, from its admission to its end or its preemption."""

    start_s: float
    asked: int  # blocks that its look-up may find; -1: its KV comes back from the host, and is not looked up
    row: int
    end_s: float
    replica: int
    again: bool  # it was preempted before, or will be: blocks that no other request has may be found too


def foresight(records: Records, requests: Mapping[str, Request], measured: Bools) -> Foresight | None:
    """The bounds on the hits of the `measured` requests of a run; None where nothing was looked up.

    `requests` has the run's requests by name; an attempt of a client has that of its first one. Each replica has one
    memory of blocks of one size, and what is found anywhere else does not count as found.
    """
    sizes = [group.block_size for group in records.sizes for _ in range(group.replicas)]
    blocks = [group.num_blocks for group in records.sizes for _ in range(group.replicas)]
    rows = records.requests.row if records.calls is None else records.calls.first_row
    whole = [requests[records.request_id(row)]._replace(row=place) for place, row in enumerate(rows.tolist())]
    stays = sorted(_stays(records, sizes))
    asked = sum([whole[stay.row].input_tokens for stay in stays if stay.asked >= 0 and measured[stay.row]])
    if not asked:
        return None

    def share(some: Iterable[_Stay], size: int, capacity: float) -> float:
        return size * most_hits(_stretches(some, whole, measured, size), capacity) / asked

    each = enumerate(zip(sizes, blocks, strict=True))
    own = sum([share([s for s in stays if s.replica == number], size, room) for number, (size, room) in each])
    if len(set(sizes)) > 1:
        return Foresight(own, None, None)
    return Foresight(own, share(stays, sizes[0], sum(blocks)), share(stays, sizes[0], inf))


def most_hits(stretches: Iterable[Stretch], capacity: float) -> int:
    """The most blocks that can be found with a memory of `capacity` blocks."""
    found = held = 0
    kept: list[tuple[float, int]] = []  # ends and blocks, by end
    for start, stop, blocks in sorted(stretches):
        if start >= stop:
            found += blocks
            continue
        while kept and kept[0][0] <= start:
            found += kept[0][1]
            held -= kept.pop(0)[1]
        insort(kept, (stop, blocks))
        held += blocks
        while held > capacity:
            last, many = kept.pop()
            left = max(0, many - int(held - capacity))
            held -= many - left
            if left:
                kept.append((last, left))
    return found + sum([blocks for _, blocks in kept])


def _stays(records: Records, sizes: Sequence[int]) -> Iterator[_Stay]:
    """All stays; a preempted request has several."""
    requests, requeues = records.requests, records.requeues
    again: dict[int, list[tuple[float, float, int]]] = {}
    columns = (requeues.row, requeues.from_s, requeues.to_s, requeues.swapped)
    for row, from_s, to_s, swapped in zip(*(column.tolist() for column in columns), strict=True):
        again.setdefault(row, []).append((from_s, to_s, swapped))
    for row in np.flatnonzero(~np.isnan(requests.scheduled_s)).tolist():
        number, waits = requests.replica.item(row), sorted(again.get(row, ()))
        prompt, size = requests.input_tokens.item(row), sizes[number]
        ends = [*(from_s for from_s, _, _ in waits), requests.released_s.item(row)]
        begins = [(requests.scheduled_s.item(row), (prompt - 1) // size)]
        begins += [(to_s, -1 if swapped else cdiv(prompt, size)) for _, to_s, swapped in waits if not isnan(to_s)]
        for (start_s, asked), end_s in zip(begins, ends, strict=False):
            yield _Stay(start_s, asked, row, inf if isnan(end_s) else end_s, number, bool(waits))


def _stretches(stays: Iterable[_Stay], requests: Sequence[Request], measured: Bools, size: int) -> Iterator[Stretch]:
    """From the end of the last stay that has a block to the look-up of the next, of measured requests.

    Of stays that begin together those come first that ask for fewer blocks: in no other order is more found.
    """
    chains = Chains()
    ends: dict[Hashable, float] = {}
    for stay in stays:
        request = requests[stay.row]
        keys = BlockKeys(request, size, chains)
        filled = (request.input_tokens + request.output_tokens) // size
        shared = min(keys.num_shared, filled)
        known = keys.first(shared)[:shared]
        if stay.again:
            known = known + [keys[block] for block in range(shared, filled)]
        if measured[stay.row] and stay.asked > 0:
            alike: dict[float, int] = {}
            for key in known[: stay.asked]:
                if key in ends:
                    start_s = min(stay.start_s, ends[key])
                    alike[start_s] = alike.get(start_s, 0) + 1
            yield from ((start_s, stay.start_s, many) for start_s, many in alike.items())
        for key in known:
            ends[key] = max(stay.end_s, ends.get(key, stay.end_s))


FORESIGHT_METRICS = (
    Metric(
        "belady_hit_rate", "hits at most", FRACTION,
        "the most that prefix_cache_hit_rate could be with the router's choices, for caches that know the future",
        None, better=1, remark="Belady's rule; simulator/metrics/part_metrics.py has the proof", is_rare=True,
    ),
    Metric(
        "belady_pooled_hit_rate", "hits at most, one cache", FRACTION,
        "the same for one cache as large as those of all replicas: whatever the router chooses", None,
        better=1, is_rare=True,
    ),
    Metric(
        "unlimited_hit_rate", "hits, nothing forgotten", FRACTION,
        "the same for one cache that forgets nothing", None, better=1, is_rare=True,
    ),
)  # fmt: skip
