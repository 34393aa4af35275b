"""The evidence that rules look at, a run's rows, late requests and step prices; the finding a rule makes of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from scenarios.assembly.engines import policy_traits
from scenarios.assembly.fleet_parts import BuiltGroup, build_fleet
from scenarios.assembly.replica_parts import build
from scenarios.diagnosis.late import Late, late_requests
from scenarios.schema.engine import DEFAULT_BUDGET
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.hardware.kv import GIB
from simulator.metrics.waits import Overload, overload
from simulator.metrics.window import Bools, Window, measured_window, run_end_s
from simulator.plan import Traits
from simulator.results.records import Floats, Ints, Records
from simulator.timing.cost import CostModel, StepShape
from simulator.workload import Workload

# Seconds of many stretches of time during which something held, from rows, in one sweep.


class Timeline:
    """The rows of all replicas on one axis: replica after replica, so that one interpolation answers for all."""

    def __init__(self, records: Records, begin_s: float, end_s: float) -> None:
        rows = records.rows
        self._begin_s, self._length_s = begin_s, end_s - begin_s + 1.0
        self._rows_s = rows.end_s - rows.start_s
        places = np.empty(2 * len(rows.start_s))
        places[0::2] = self.place(rows.replica, rows.start_s)
        places[1::2] = self.place(rows.replica, rows.end_s)
        self._places = places

    def place(self, replica: Ints, time_s: Floats) -> Floats:
        """Return the places of these moments of these replicas on the axis."""
        return np.asarray(replica * self._length_s + np.clip(time_s - self._begin_s, 0.0, self._length_s))

    def seconds(self, weight: Floats | Bools, replica: Ints, from_s: Floats, to_s: Floats) -> Floats:
        """Return, for every stretch, the time of its replica's rows in it, each row's times its weight (0 to 1)."""
        if not len(self._places):
            return np.zeros(len(from_s))
        total = np.zeros(len(self._places))
        done = np.cumsum(weight * self._rows_s)
        total[1::2] = done
        total[2::2] = done[:-1]
        at = np.maximum(replica, 0)
        to = np.interp(self.place(at, to_s), self._places, total)
        return np.asarray(np.maximum(to - np.interp(self.place(at, from_s), self._places, total), 0.0))


def covered(starts: Floats, ends: Floats, from_s: Floats, to_s: Floats) -> Floats:
    """Return, for every stretch from `from_s` to `to_s`, its time inside any of the intervals, which may overlap."""
    keep = ends > starts
    if not keep.any():
        return np.zeros(len(from_s))
    times = np.concatenate((starts[keep], ends[keep]))
    steps = np.concatenate((np.ones(keep.sum()), -np.ones(keep.sum())))
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(steps[order])
    inside = np.concatenate(([0.0], np.cumsum(np.diff(times) * (depth[:-1] > 0))))
    found = np.interp(to_s, times, inside) - np.interp(from_s, times, inside)
    return np.asarray(np.maximum(found, 0.0))


# Waits for KV that is loaded from the host or a further tier, and what a load takes beside computing it.

HOST_GIB = 256.0
"""The most host memory that is proposed for a GPU: a server of eight has 2 TiB."""

TIERS = ("the link to the host", "the first further tier", "the second further tier")


def load_waits(records: Records, rows: Ints, from_s: Floats, to_s: Floats) -> Floats:
    """Return the seconds in which these requests waited while a tier's link loaded, theirs or others before theirs.

    An array of (tiers, requests): the host, then further tiers. A request that loaded nothing waited for no load.
    """
    copies, replica = records.copies, records.requests.replica[rows]
    found = np.zeros((len(TIERS), len(rows)))
    if copies is None:
        return found
    for tier in range(len(TIERS)):
        loads = (copies.tier == tier) & (copies.stored == 0)
        last_s = np.full(len(records.requests.row), -np.inf)
        np.maximum.at(last_s, copies.row[loads], copies.end_s[loads])
        until_s = np.minimum(last_s[rows], to_s)
        for place in np.unique(replica).tolist():
            mine, on = (replica == place) & (until_s > from_s), loads & (copies.replica == place)
            found[tier, mine] = covered(copies.start_s[on], copies.end_s[on], from_s[mine], until_s[mine])
    return found


def load_token_s(scenario: Scenario) -> float:
    """Return the seconds in which a token's KV crosses the link between the host and the GPUs of a replica."""
    hardware = scenario.hardware
    given = hardware.kv_offload.link_gb_s if hardware.kv_offload is not None else None
    link_gb_s = scenario.resolve_gpu().host_link_gb_s if given is None else given
    return kv_gib(scenario, 1.0) * GIB / (link_gb_s * 1e9 * hardware.tensor_parallel)


def prompt_token_s(cost: CostModel, budget: int) -> float:
    """Return the seconds that a prompt token adds in a step full of them."""
    base_s = cost.step_s(StepShape(1, 1, decode_longest=1, decode_squares=1))
    pairs = budget * (budget + 1) // 2
    full_s = cost.step_s(StepShape(0, 0, 1, budget, budget, pairs, prefill_longest=budget))
    return max(full_s - base_s, 0.0) / budget


def kv_gib(scenario: Scenario, tokens: float) -> float:
    """Return the GiB that the KV of so many tokens takes, over all GPUs of a replica."""
    kv = build(scenario).kv
    return tokens * kv.bytes_per_block * scenario.hardware.tensor_parallel / scenario.engine.block_size / GIB


def with_host(scenario: Scenario, host_gib: float) -> Scenario:
    """Return the scenario with so much memory for KV on each host. Raises InputError as `load` does."""
    data = scenario.model_dump(exclude_unset=True)
    hardware = data.get("hardware") or {}
    tier = {**(hardware.get("kv_offload") or {}), "host_gib": host_gib}
    return load({**data, "hardware": {**hardware, "kv_offload": tier}}, check_files=False)


@dataclass(frozen=True, slots=True)
class Prices:
    """The step costs and the limits of each replica.

    `base_s` is a step that decodes one token behind one, which reads the weights and little else: what a step costs
    however small its batch. `token_s` is what a prompt token adds in a step full of them. `budget` bounds the tokens
    of a step.
    """

    base_s: Floats
    token_s: Floats
    slots: Ints
    budget: Ints
    blocks: Ints


class Evidence:
    """A run as rules see it. Arrays are of rows, or have an entry for each late request."""

    def __init__(
        self, scenario: Scenario, records: Records, summary: Mapping[str, Any], workload: Workload | None = None
    ) -> None:
        self.scenario, self.records, self.summary = scenario, records, summary
        self.workload = workload  # None: to be built where it is needed
        self.window: Window = measured_window(records, **scenario.measure.window(records))
        self.late: Late = late_requests(records, scenario.resolve_slo(), summary, self.window)

    # Which replica, and what its steps cost

    @cached_property
    def fleet(self) -> tuple[BuiltGroup, ...]:
        return build_fleet(self.scenario)

    @cached_property
    def prices(self) -> Prices:
        groups = [_prices(built) for built in self.fleet]
        times = [built.group.replicas for built in self.fleet]
        return Prices(*[np.repeat(np.array(column), times) for column in zip(*groups, strict=True)])

    @cached_property
    def replica(self) -> Ints:
        """The replica of each late request; 0 where it came to none."""
        return np.maximum(self.records.requests.replica[self.late.row], 0)

    # Rows

    @cached_property
    def row_s(self) -> Floats:
        return self.records.rows.end_s - self.records.rows.start_s

    @cached_property
    def busy_s(self) -> float:
        """The seconds of all rows."""
        return float(self.row_s.sum())

    @cached_property
    def busy_share(self) -> float:
        """The busy seconds as a share of the time that replicas were there."""
        return min(1.0, self.busy_s / max(self.replica_seconds, 1e-9))

    @cached_property
    def base_row_s(self) -> Floats:
        """The seconds of each row's steps with a batch of one."""
        rows = self.records.rows
        return np.minimum(rows.repeat * self.prices.base_s[rows.replica], self.row_s)

    @cached_property
    def free_blocks(self) -> Ints:
        """Blocks that no request holds, in the last step of each row."""
        rows, used = self.records.rows, self.records.step_used_blocks
        return np.asarray(self.prices.blocks[rows.replica] - used[rows.first_step + rows.repeat - 1], dtype=np.int64)

    @cached_property
    def need_blocks(self) -> int:
        """Blocks that a late request takes to begin, on average: those of its prompt, or its reservation."""
        requests, late = self.records.requests, self.late.row
        if not len(late):
            return 1
        tokens = requests.input_tokens[late] + (requests.max_tokens[late] if self.traits.reserves else 1)
        return math.ceil(float(tokens.mean()) / self.records.block_size)

    @cached_property
    def traits(self) -> Traits:
        """The traits of the configured policy."""
        return policy_traits(self.scenario)

    @cached_property
    def no_memory(self) -> Bools:
        """Rows with fewer free blocks than a late request takes."""
        return np.asarray(self.free_blocks < self.need_blocks)

    @cached_property
    def no_slot(self) -> Bools:
        """Rows with every slot taken and memory free."""
        rows = self.records.rows
        return ~self.no_memory & (rows.running >= self.prices.slots[rows.replica])

    @cached_property
    def no_tokens(self) -> Bools:
        """Rows with memory and slots that compute prompts and have no tokens left for another one."""
        rows, late = self.records.rows, self.late.row
        prompt = float(self.records.requests.input_tokens[late].mean()) if len(late) else 1.0
        full = rows.tokens + prompt > self.prices.budget[rows.replica]
        return ~self.no_memory & ~self.no_slot & (rows.prefilling > 0) & full

    @cached_property
    def held_back(self) -> Bools:
        """Rows with slots, memory and tokens in which a waiting request is still not begun."""
        return ~self.no_memory & ~self.no_slot & ~self.no_tokens

    @cached_property
    def seen_s(self) -> Floats:
        """The seconds of each row times the late requests that waited for their first token in it."""
        return np.asarray(self.row_s * self.inside(self.replica, self.late.from_s, self.late.first_s))

    @cached_property
    def paced_s(self) -> Floats:
        """The seconds of each row times the late requests that were between first and last token in it."""
        return np.asarray(self.row_s * self.inside(self.replica, self.late.first_s, self.late.last_s))

    def inside(self, replica: Ints, from_s: Floats, to_s: Floats) -> Ints:
        """Count, for each row, the stretches of time on its replica that contain its middle."""
        rows, place = self.records.rows, self.timeline.place
        middle = place(rows.replica, (rows.start_s + rows.end_s) / 2)
        came, gone = np.sort(place(replica, from_s)), np.sort(place(replica, to_s))
        found = np.searchsorted(came, middle, "right") - np.searchsorted(gone, middle, "right")
        return np.asarray(np.maximum(found, 0), dtype=np.int64)

    def plain_step_for_late_s(self) -> float:
        """Return the mean seconds of a step that only decodes, over those of late requests; else over the run."""
        rows = self.records.rows
        plain = (rows.prefilling == 0) & (rows.decoding > 0) & (self.paced_s > 0)
        steps = float((self.paced_s * rows.repeat / np.maximum(self.row_s, 1e-12))[plain].sum())
        return float(self.paced_s[plain].sum()) / steps if steps > 0 else self.plain_step_s

    @cached_property
    def plain_step_s(self) -> float:
        """The mean seconds of a step that only decodes; without such a step, those of a step with a batch of one."""
        rows = self.records.rows
        plain = (rows.prefilling == 0) & (rows.decoding > 0)
        if not plain.any():
            return float(self.prices.base_s.mean())
        return float(self.row_s[plain].sum() / rows.repeat[plain].sum())

    @cached_property
    def prompt_token_s(self) -> float:
        """The seconds that a prompt token added to this run's steps; nearly 0 where steps wait for memory anyway."""
        rows = self.records.rows
        prompts = rows.prefill_tokens > 0
        tokens = float(np.dot(rows.repeat[prompts], rows.prefill_tokens[prompts]))
        decoding = prompts & (rows.decoding > 0)
        without = float(rows.repeat[decoding].sum()) * self.plain_step_s
        without += float(self.base_row_s[prompts & ~decoding].sum())
        return max(float(self.row_s[prompts].sum()) - without, 0.0) / tokens if tokens else 0.0

    def fixed_share(self, rows: Bools) -> float:
        """Return the share of these rows' time, as the late requests saw it, that a batch of one would cost as well."""
        return self.seen(self.base_row_s / np.maximum(self.row_s, 1e-12), rows)

    def seen(self, column: Ints | Floats, rows: Bools) -> float:
        """Return the mean of a column over the time of these rows, as the late requests saw it."""
        return _mean(column[rows], self.seen_s[rows])

    def mean(self, column: Ints | Floats, rows: Bools) -> float:
        """Return the mean of a column over the time of these rows."""
        return _mean(column[rows], self.row_s[rows])

    def spare_memory(self, rows: Bools) -> float:
        """Return how many times larger all memory is than what is used in these rows, as the late requests saw it."""
        used = self.prices.blocks[self.records.rows.replica] - self.free_blocks
        return float(self.prices.blocks.mean()) / max(self.seen(used, rows), 1.0)

    # Late requests

    @cached_property
    def timeline(self) -> Timeline:
        first = float(self.records.requests.arrival_s.min()) if len(self.records.requests.row) else 0.0
        return Timeline(self.records, first, run_end_s(self.records))

    def queued_s(self, rows: Bools | Floats) -> Floats:
        """Return each late request's seconds in the queue that fall into these rows of its replica."""
        return self.timeline.seconds(rows, self.replica, self.late.from_s, self.late.begun_s)

    def before_first_s(self, rows: Bools | Floats) -> Floats:
        """Return each late request's seconds until its first token that fall into these rows of its replica."""
        return self.timeline.seconds(rows, self.replica, self.late.from_s, self.late.first_s)

    def after_first_s(self, rows: Bools | Floats) -> Floats:
        """Return each late request's seconds from first to last token that fall into these rows of its replica."""
        return self.timeline.seconds(rows, self.replica, self.late.first_s, self.late.last_s)

    def resting_s(self) -> Floats:
        """Return each late request's seconds in the queue while its replica computed nothing."""
        rows = self.records.rows
        return np.asarray(np.maximum(self.late.queued_s - self.queued_s(np.ones(len(rows.repeat))), 0.0))

    def covered_s(self, starts: Floats, ends: Floats, of: Ints) -> Floats:
        """Return each late request's seconds until its first token in the intervals, the i-th on replica `of[i]`."""
        found = self.nothing()
        for replica in np.unique(of).tolist():
            mine, own = self.replica == replica, of == replica
            found[mine] = covered(starts[own], ends[own], self.late.from_s[mine], self.late.first_s[mine])
        return found

    # Load against capacity

    @cached_property
    def overload(self) -> Overload | None:
        """The worst backlog of the run that left requests late."""
        limit_s = self.late.wait_limit_s if math.isfinite(self.late.wait_limit_s) else None
        return overload(self.records, limit_s=limit_s, **self.scenario.measure.window(self.records))

    @cached_property
    def pressure(self) -> float:
        """The requests that came over those that were begun, while the worst backlog grew; 1 where there was none."""
        found = self.overload
        return max(1.0, found.arrival_rate / found.service_rate) if found is not None and found.service_rate else 1.0

    def relieved(self, gain: float) -> float:
        """Return the share of a queue's growth that serving `gain` times as much would have taken away.

        A fluid queue to which requests come at `pressure` times the rate of service grows by pressure - 1 of what is
        served; with `gain` it grows by pressure - gain, and not at all from there on.
        """
        return 1.0 if self.pressure <= 1.0 else min(1.0, max(0.0, gain - 1.0) / (self.pressure - 1.0))

    @cached_property
    def replica_seconds(self) -> float:
        """The seconds that replicas were there."""
        return float(self.summary.get("replica_seconds") or 0.0)

    def nothing(self) -> Floats:
        """Return zero for each late request."""
        return np.zeros(len(self.late.row))


def _mean(values: Ints | Floats, seconds: Floats) -> float:
    total = float(seconds.sum())
    return float(np.dot(values, seconds)) / total if total > 0 else 0.0


def _prices(built: BuiltGroup) -> tuple[float, float, int, int, int]:
    engine, cost = built.group.scenario.engine, built.parts.cost
    budget = int(engine.parameter("max_num_batched_tokens", DEFAULT_BUDGET) or DEFAULT_BUDGET)
    slots = int(engine.parameter("max_num_active_seqs") or engine.parameter("max_num_seqs", 256) or 256)
    base_s = cost.step_s(StepShape(1, 1, decode_longest=1, decode_squares=1))
    return base_s, prompt_token_s(cost, budget), slots, budget, built.parts.kv.usable


# A rule's claim about a run, and the finding that diagnosis makes of it.

# Numbers in the sentences of findings.


def seconds(value: float) -> str:
    """A time: 12.4 ms, 3.2 s, 181 s, 12.4 min."""
    if not math.isfinite(value):
        return "-"
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:.1f} min"


def moment(value: float) -> str:
    """A moment of the run: 181 s, 12.4 min."""
    return f"{value:.0f} s" if value < 600 else f"{value / 60:.1f} min"


def count(value: float) -> str:
    """A number: 1,234; 12.3; 0.45."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def rounded(value: float) -> float | None:
    """Round evidence for JSON to four digits; None for what is no number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """Keys of the scenario to change, dotted, and why."""

    change: Mapping[str, Value]
    why: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A rule's claim: the seconds of every late request's lateness that a cause explains.

    `waited_s` lie before its first token and `slowed_s` after it. `lost` is the share of `lost_of` (the GPU time, or
    the tokens that it computed) that the cause cost. `numbers` are the evidence; it holds for the time `span_s`, unless
    given from the arrival of the first request that it explains to the end of the last.
    """

    words: str
    numbers: Mapping[str, Value]
    remedies: Sequence[Remedy]
    waited_s: Floats | None = None
    slowed_s: Floats | None = None
    lost: float = 0.0
    lost_of: str = "GPU time"
    span_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, what its finding means, how that is told, and what helps.

    `find` takes the evidence and the seconds of each late request that earlier rules left. It gives None if the cause
    is not there.
    """

    name: str
    title: str
    means: str
    told_by: str
    helps: str
    find: Callable[[Evidence, Floats], Claim | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's claim, weighed.

    `severity` is the share of all requests that the cause made late, or of the GPUs' work that it lost. `explains` is
    its share of the late requests. Findings about late requests come before those that only cost work.
    """

    rule: Rule
    claim: Claim
    severity: float
    explains: float
    from_s: float
    to_s: float

    @property
    def late(self) -> bool:
        """True if it made requests late."""
        return self.explains > 0


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of a run, the worst first. `unexplained` is the share of the late requests without a cause."""

    found: tuple[Finding, ...] = ()
    requests: int = 0
    late: int = 0
    broken: bool = False
    by_slo: bool = True
    unexplained: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """True if the SLO is kept and nothing was found."""
        return not self.found and not self.broken
