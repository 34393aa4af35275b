"""Laws of speculative decoding: tokens and blocks are conserved, fast-forward changes nothing, no policy sees more."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from simulator.engine.completion import OnEnd
from simulator.fleet.dispatch import LinkSpeed
from simulator.fleet.group import ReplicaGroup, Role
from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.memory.radix_cache import RadixCache
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.sglang import Sglang
from simulator.request import PromptContent, Request
from simulator.results.records import Records, Status
from simulator.simulate import Run, simulate_fleet
from simulator.speculative import Speculation, SpeculativeConfig, tokens_ahead
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.columns import workload_of
from tests.listening import Inlet, simulate_listening
from tests.parity.cases import clients

SIZE = 8


@dataclass(frozen=True, slots=True)
class Memory:
    num_gpu_blocks: int
    block_size: int = SIZE
    num_host_blocks: int = 0


class Drawn:
    """Acceptance by a seed: the same at every question. From verify step `other_from` on it is another."""

    def __init__(self, seed: int, most: int, other_from: int) -> None:
        self._seed, self._most, self._other_from = seed, most, other_from

    def enter(self, request: Request) -> None:
        pass

    def accepted(self, row: int, verify_step: int) -> int:
        stream = self._seed + (verify_step >= self._other_from)
        return random.Random(f"{stream}-{row}-{verify_step}").randint(0, self._most)


METHODS: list[dict[str, Any]] = [
    {"method": "ngram"},
    {"method": "draft_model"},
    {"method": "eagle"},
    {"method": "eagle", "disable_lookahead_block_hashes": True},
    {"method": "eagle", "num_speculative_tokens_per_batch_size": [(1, 2, 3), (3, 9, 1), (10, 99, 0)]},
]


def drawn_requests(
    rng: random.Random, inputs: list[int], outputs: list[int], caching: bool, priority: Callable[[], Any] = lambda: 0
) -> Workload:
    """Requests of these lengths, with a cache of two groups of prompts; `priority` draws after the caps."""
    groups = [PromptContent(prefix_group=f"g{row % 2}", prefix_tokens=20) for row in range(len(inputs))]
    arrival_s = sorted(rng.random() * rng.choice([0.0, 0.5, 4.0]) for _ in inputs)
    caps = [n + rng.choice([0, 0, 5]) for n in outputs]
    return workload_of(arrival_s, inputs, outputs, caps, priority(), content=groups if caching else None)


def serve(
    seed: int,
    *,
    fast_forward: bool = True,
    other_from: int = 1 << 30,
    log: bool = False,
    asynchronous: bool | None = None,
    interval: int = 1,
    apart: Sequence[tuple[int, float]] | None = None,
) -> Run:
    """A random run; `apart`: prefill and decode on replicas of their own, and the aborts, by row and time."""
    rng = random.Random(seed)
    drafts = rng.randint(1, 4)
    config = SpeculativeConfig(num_speculative_tokens=drafts, **rng.choice(METHODS))
    count, slots = rng.randint(3, 30), rng.choice([2, 4, 8, 16])
    inputs, outputs = [[rng.randint(1, most) for _ in range(count)] for most in (60, 120)]
    longest = max(map(sum, zip(inputs, outputs, strict=True))) + rng.choice([0, 1, 30])
    caching = rng.random() < 0.5 and apart is None
    by_id = rng.random() < 0.3
    make_blocks: Callable[[int, int], KVBlocks] = BlockManager if by_id else BlockLedger
    if caching:
        make_blocks = partial(PrefixCache if by_id else PrefixLedger, block_size=SIZE)
    whole = drawn_requests(rng, inputs, outputs, caching, lambda: [rng.randint(0, 2) for _ in range(count)])
    memory = Memory(-(-longest // SIZE) + 4 + rng.choice([0, 8, 200, 1000]))
    made = ChunkedPrefill(
        max_num_seqs=slots,
        max_num_batched_tokens=max(slots * (drafts + 1), rng.choice([32, 64, 512])),
        order=rng.choice(["fcfs", "priority"]),
        async_scheduling=rng.random() < 0.3 if asynchronous is None else asynchronous,
        prefill_schedule_interval=interval,
    )
    speculation = Speculation(config, Drawn(seed, drafts, other_from), longest)
    cost = Linear(0.01, 1e-4, 1e-6, rng.choice([0.0, 1e-4]))
    group = ReplicaGroup(lambda: made, memory, cost, make_blocks=make_blocks, speculation=speculation)
    if apart is None:
        return simulate_fleet(whole, [group], fast_forward=fast_forward, log_decisions=log)
    halves: list[tuple[Role, int]] = [("prefill", 1), ("decode", 1 + seed % 2)]
    groups = [replace(group, name=role, role=role, block_bytes=1000, replicas=count) for role, count in halves]

    def make_listener(inlet: Inlet) -> OnEnd:
        for row, at_s in apart:
            inlet.abort_at(row, at_s)
        return lambda row, status, end_s, cause: None

    serve = partial(simulate_listening, make_listener=make_listener) if apart else simulate_fleet
    link = LinkSpeed(rng.choice([1e4, 1e6]), rng.choice([0.0, 0.003]))
    return serve(whole, groups, router="least_kv", link=link, fast_forward=fast_forward, log_decisions=log)


def serve_ahead(
    seed: int, *, fast_forward: bool = True, other_from: int = 1 << 30, log: bool = False, aborts: bool = False
) -> Run:
    """A random run of SGLang's policy, many of them short of memory; with `aborts` every third client gives up."""
    rng = random.Random(f"ahead {seed}")
    topk, verified = rng.choice([(1, None), (1, None), (2, 4), (4, 6)])
    steps = rng.randint(1, 4)
    method: Any = rng.choice(["eagle", "draft_model", "mtp"])
    config = SpeculativeConfig(method, steps, eagle_topk=topk, num_draft_tokens=verified)
    count, slots = rng.randint(3, 30), rng.choice([2, 4, 8, 16])
    inputs, outputs = [[rng.randint(1, most) for _ in range(count)] for most in (60, 120)]
    longest = max(map(sum, zip(inputs, outputs, strict=True)))
    caching = rng.random() < 0.5
    whole = drawn_requests(rng, inputs, outputs, caching)
    memory = Memory(-(-(longest + tokens_ahead(config, SIZE)) // SIZE) + 4 + rng.choice([0, 8, 200]))
    made = Sglang(
        max_num_seqs=slots,
        enable_mixed_chunk=method != "draft_model" and rng.random() < 0.5,
        chunked_prefill_size=rng.choice([16, 64, None]),
        schedule_conservativeness=rng.choice([0.05, 1.0]),
        order=rng.choice(["fcfs", "lpm"]) if caching else "fcfs",
        async_scheduling=rng.random() < 0.6,
    )
    make_blocks: Callable[[int, int], KVBlocks] = partial(RadixCache, block_size=SIZE) if caching else BlockLedger
    speculation = Speculation(config, Drawn(seed, steps, other_from), longest)
    cost = Linear(0.01, 1e-4, 1e-6, rng.choice([0.0, 1e-4]))
    group = ReplicaGroup(lambda: made, memory, cost, make_blocks=make_blocks, speculation=speculation)
    if not aborts:
        return simulate_fleet(whole, [group], fast_forward=fast_forward, log_decisions=log)
    gone = [(row, float(whole.arrival_s[row]) + rng.random()) for row in range(0, count, 3)]
    listener = partial(clients, gone)
    return simulate_listening(whole, [group], listener, fast_forward=fast_forward, log_decisions=log)


SERVERS = pytest.mark.parametrize("run", [serve, serve_ahead], ids=["vllm", "sglang"])


def columns(records: Records) -> dict[str, Any]:
    """Every column of the records, by table and name."""
    found = {"step_end_s": records.step_end_s, "step_used_blocks": records.step_used_blocks}
    for table in ("requests", "rows", "gaps", "requeues"):
        part = getattr(records, table)
        found |= {f"{table}.{name}": getattr(part, name) for name in type(part).__dataclass_fields__}
    return found


@SERVERS
@pytest.mark.parametrize("seed", range(24))
def test_fast_forward_changes_nothing(run: Callable[..., Run], seed: int) -> None:
    same(run, seed)


def same(run: Callable[..., Run], seed: int, **more: Any) -> Records:
    """The records of a run, equal to those of single steps."""
    records = run(seed, **more).records
    fast, slow = columns(records), columns(run(seed, fast_forward=False, **more).records)
    for name, column in fast.items():
        np.testing.assert_array_equal(column, slow[name], err_msg=name)
    return records


@pytest.mark.parametrize("seed", range(100, 116))
def test_fast_forward_changes_nothing_under_asynchronous_scheduling(seed: int) -> None:
    same(serve, seed, asynchronous=True)


@pytest.mark.parametrize("seed", range(200, 212))
def test_fast_forward_changes_nothing_beside_a_cadence(seed: int) -> None:
    same(serve, seed, interval=2 + seed % 3)


@pytest.mark.parametrize("seed", range(300, 316))
def test_drafts_of_decoding_replicas(seed: int) -> None:
    """Half of the runs have aborts. Each request ends once; the KV of its prompt moves once."""
    rng = random.Random(-seed)
    aborts = [(row, rng.uniform(0.0, 3.0)) for row in range(3)] if seed % 2 else []
    records = same(serve, seed, asynchronous=seed % 3 == 0, apart=aborts)
    requests, gaps, moved = records.requests, records.gaps, records.transfers
    served = requests.status == Status.FINISHED
    assert served.sum() >= len(served) - len(aborts)
    assert np.isin(requests.status, (Status.FINISHED, Status.ABORTED)).all()
    if not aborts:
        assert gaps.count.sum() == (requests.output_tokens - 1).sum()
        assert moved is not None
        assert sorted(moved.row.tolist()) == np.flatnonzero(requests.output_tokens > 1).tolist()
        assert np.array_equal(moved.ready_s, requests.first_token_s[moved.row])
        rows = records.rows
        assert not rows.decoding[rows.replica == 0].any()
        assert records.drafts is not None
        assert records.drafts.steps.sum() > 0


@SERVERS
@pytest.mark.parametrize("seed", range(24))
def test_tokens_and_blocks_are_conserved(run: Callable[..., Run], seed: int) -> None:
    records = run(seed).records
    requests, gaps = records.requests, records.gaps
    served = requests.status == Status.FINISHED
    assert served.all()
    assert gaps.count.sum() == (requests.output_tokens - 1).sum()  # every token but the first has a gap
    waited = (requests.last_token_s - requests.first_token_s).sum()
    assert (gaps.gap_s * gaps.count).sum() == pytest.approx(waited)
    assert (requests.first_token_s <= requests.last_token_s).all()
    assert records.step_used_blocks.max() <= records.num_blocks
    assert (requests.arrival_s <= requests.scheduled_s).all()


@SERVERS
@pytest.mark.parametrize("seed", range(16))
def test_no_decision_depends_on_results_to_come(run: Callable[..., Run], seed: int) -> None:
    """Two runs whose acceptance differs from some step on decide alike until a result of such a step is there.

    When a step ends shows what the running one accepted, where the KV of that is counted.
    """
    a, b = run(seed, log=True).decisions, run(seed, other_from=3, log=True).decisions
    assert a is not None
    assert b is not None
    differing = [step for step, (x, y) in enumerate(zip(a, b, strict=False)) if x["emitted"] != y["emitted"]]
    if differing:
        known = differing[0] + (2 if "t_schedule_s" in a[0] else 1)  # the first plan that knows of it
        for x, y in zip(a[:known], b[:known], strict=True):
            for key in ("scheduled", "spec", "admitted", "preempted", "waiting", "num_free_blocks", "t_start_s"):
                assert x[key] == y[key]


@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_blocks_come_free_at_the_end(seed: int, aborts: bool) -> None:
    """Of the last step with overlap too, in which what it decodes may have ended; and those of aborted requests."""
    run = serve_ahead(seed, log=True, aborts=aborts)
    assert run.decisions is not None
    requests = run.records.requests
    whole = requests.status == Status.FINISHED
    assert (whole | (requests.status == Status.ABORTED)).all()
    assert aborts or whole.all()
    if whole[-1]:  # an abort at rest ends no step
        assert run.decisions[-1]["num_free_blocks_end"] == run.records.num_blocks
    again = columns(serve_ahead(seed, fast_forward=False, aborts=aborts).records)
    for name, column in columns(run.records).items():
        np.testing.assert_array_equal(column, again[name], err_msg=name)
