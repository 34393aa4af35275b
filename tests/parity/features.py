"""Decisions of batchlab's own parts on cases of vLLM's features, in the format of the recorded files.

`decide` makes what a case describes, lets the parts that a run is put together from decide, and returns what the
records hold. It decides nothing itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

from simulator.engine.admission import Admission, QueueCaps, ReplicaLoad
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.router import Replicas
from simulator.fleet.routers.vllm_dp import VllmDp
from simulator.fleet.signals import Signals
from simulator.fleet.windows import Signal
from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.metrics.vllm_metrics import QUEUE_LIMITS
from simulator.request import ArrivingRequest, Request
from simulator.request_state import DecodeClock, RequestState
from simulator.simulate import simulate_fleet
from simulator.speculative import Speculation, SpeculativeConfig
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear
from tests.listening import simulate_listening
from tests.parity.adapter_features import lora
from tests.parity.cases import Memory, aborts_of, clients, cost_of, decisions_of, group_of, policy_of, workload_of
from tests.parity.connected_features import CONNECTED
from tests.parity.draft_cases import TOGETHER
from tests.parity.hybrid_features import hybrid, hybrid_plan
from tests.parity.image_features import encoder
from tests.parity.pipeline_features import pipeline

Case = Mapping[str, Any]


def balancer(case: Case) -> list[int]:
    """The rank that each request goes to, through the one API server of the case."""
    server, count = case["client_index"], case["engines"]
    router = VllmDp(api_server_count=case["client_count"])
    taken_by: Any = SimpleNamespace(below=lambda servers: server)
    router.start(taken_by)
    signals = Signals([idle(rank) for rank in range(count)])
    rows: dict[str, int] = {}
    chosen = []
    for event, *told in case["events"]:
        if event == "snapshot":
            signals.show([Signal(*seen) for seen in told[0]])
        elif event == "finish":
            router.ended(rows[told[0]])
        else:
            name, rank = told
            row = rows[name] = len(rows)
            request: Any = SimpleNamespace(row=row, data_parallel_rank=rank)
            load = router.choose(request, signals.replicas)
            signals.sent(load)
            chosen.append(load.index)
    return chosen


def idle(rank: int) -> Any:
    """An idle rank. Its use of KV is shown as a share: it has one block."""
    return SimpleNamespace(
        index=rank,
        group="default",
        max_num_seqs=1,
        num_blocks=1,
        num_waiting=0,
        num_running=0,
        used_blocks=0,
        loras=(),
        max_loras=0,
    )


def queue_caps(case: Case) -> list[str]:
    """The word for each request of one sequence or more: "ok", or the cap that rejects it."""
    admission = Admission(QueueCaps(case["max_num_queued_reqs"], case["max_num_queued_tokens"]))
    admitted: dict[str, list[RequestState]] = {}
    decisions = []
    rows = count()
    for now_s, (event, name, *told) in enumerate(case["events"]):
        if event == "add":
            sequences, tokens = told
            refused = admission.refusal(now_s, sequences)
            decisions.append("ok" if refused is None else QUEUE_LIMITS[refused[0]])
            if refused is None:
                asked = [Request(next(rows), name, now_s, tokens, 8, 8) for _ in range(sequences)]
                admitted[name] = [RequestState(each, DecodeClock(16)) for each in asked]
                for live in admitted[name]:
                    admission.add(live)
        elif event == "first":
            for live in admitted.get(name, ()):
                live.first_token_s = now_s
        else:  # an end, or an abort as it is sent
            for live in admitted.pop(name, ()):
                admission.end(live.row)
    return decisions


@dataclass(frozen=True, slots=True)
class Listed:
    """Accepted drafts, or proposed ones, as a case lists them for each request, in turn."""

    lists: Sequence[Sequence[int]]

    def enter(self, request: Request) -> None:
        pass

    def accepted(self, row: int, verify_step: int) -> int:
        law = self.lists[row]
        return law[verify_step % len(law)]

    proposed = accepted


def speculation_of(case: Case) -> Speculation:
    """The case's drafter, and what the model accepts of it."""
    spec = case["spec"]
    drafts = spec["k"]
    config = SpeculativeConfig(
        spec["method"],
        drafts,
        spec["schedule"] and [tuple(entry) for entry in spec["schedule"]],
        num_nextn_predict_layers=spec["mtp_layers"],
        parallel_drafting=spec["parallel_drafting"],
        disable_lookahead_block_hashes=spec["disable_lookahead_block_hashes"],
        disable_eagle_block_drop=spec["disable_eagle_block_drop"],
        model_runner=spec["model_runner"],
    )
    requests = sorted(case["requests"], key=lambda r: float(r.get("arrival_time", 0)))
    accepts, finds = [r.get("accept") or [0] for r in requests], [r.get("drafts") or [drafts] for r in requests]
    return Speculation(config, Listed(accepts), case["config"]["max_model_len"], Listed(finds))


def speculative(case: Case, *, fast_forward: bool = True, by_id: bool = False) -> list[dict[str, Any]]:
    """The steps of a replica that decodes speculatively, with aborts where the case has any."""
    config, cost, given = case["config"], case["cost"], dict(case)
    memory = Memory(config["num_gpu_blocks"], config["block_size"])
    make_blocks: Callable[[int, int], KVBlocks] = BlockManager if by_id else BlockLedger
    if config["enable_prefix_caching"]:
        make_blocks = partial(PrefixCache if by_id else PrefixLedger, block_size=memory.block_size)
    policy = policy_of(given)
    model = Linear(cost["a"], cost["b"], cost["c"], cost["d"])
    group = ReplicaGroup(lambda: policy, memory, model, make_blocks=make_blocks, speculation=speculation_of(case))
    aborts = aborts_of(given)
    serve = partial(simulate_listening, make_listener=partial(clients, aborts)) if aborts else simulate_fleet
    run = serve(workload_of(given), [group], fast_forward=fast_forward, log_decisions=True)
    assert run.decisions is not None
    steps = [{**step, "t_end": step["t_end_s"]} for step in run.decisions]
    if case["kind"].startswith("abort"):
        tell_aborts(steps, case)
    return steps


def tell_aborts(steps: list[dict[str, Any]], case: Case) -> None:
    """Name the aborted as the harness does: with the next step those that arrived while one ran, and with no step the
    others, whom the log names with the step that ran.
    """
    came = {str(r["id"]): r["arrival_time"] for r in case["requests"]}
    gone = [step.get("aborted", []) for step in steps]
    named = set().union(*gone, *(step["finished"] for step in steps))
    following = came.keys() - named  # the log has no step for those that left before the first
    for step, with_it in zip(steps, gone, strict=True):
        planned_s = step.get("t_schedule_s", step["t_start_s"])
        step["aborted"] = {name: "waiting" for name in came if name in following and came[name] <= planned_s}
        following = {name for name in with_it if came[name] > planned_s}


def plain(case: Case) -> list[dict[str, Any]]:
    """The steps of a replica without drafts, in cases of cadences and of aborts."""
    count = len(case["requests"])
    steps = decisions_of(dict(case), fast_forward=count % 2 == 0, by_id=count % 3 == 0)
    tell_aborts(steps, case)
    return [{**step, "t_end": step["t_end_s"]} for step in steps]


class GivenRanks:
    """Sends each request to the rank that the case gives it."""

    reads_loads = False

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        return replicas[self._ranks[request.row]]


class SlowestRank:
    """A common step lasts as long as the longest of the ranks'; a dummy batch without drafts is of one token."""

    def __init__(self, cost: Linear) -> None:
        self._cost = cost

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        dummy_s = self._cost.base_s + self._cost.per_token_s
        return max(self._cost.step_s(shape) if shape.tokens else dummy_s for shape in shapes)


def ranks(case: Case) -> list[dict[str, Any]]:
    """The common steps of ranks in lockstep, with what each rank decides in them."""
    count = case["dp"]["ranks"]
    cost = cost_of(dict(case))
    if (drafts := case.get("spec")) is not None:
        cost = replace(cost, per_drafted_token_s=case["cost"]["d"])
    group = group_of(
        dict(case),
        replicas=count,
        group_cost=SlowestRank(cost),
        speculation=None if drafts is None else speculation_of(case),
    )
    requests = sorted(case["requests"], key=lambda r: r["arrival_time"])
    run = simulate_fleet(
        workload_of(dict(case)), [group], router=GivenRanks([r["rank"] for r in requests]), log_decisions=True
    )
    assert run.decisions is not None
    logs = [[step for step in run.decisions if step["replica"] == rank] for rank in range(count)]
    return [{"ranks": steps, "t_end": steps[0]["t_end_s"]} for steps in zip(*logs, strict=True)]


SPECULATIVE = ("spec_ngram", "spec_draft", "spec_eagle", "spec_mtp", "spec_dynamic", "abort_spec")
DECIDES: Mapping[str, Callable[[Case], Any]] = {
    "balancer": balancer,
    "queue_caps": queue_caps,
    "dp": ranks,
    "encoder": encoder,
    "hybrid": hybrid,
    "lora": lora,
    "hybrid_plan": hybrid_plan,
    "pipeline": pipeline,
    **{kind + mode: plain for kind in ("cadence", "abort") for mode in ("", "_async")},
    **CONNECTED,
    **{kind + mode: speculative for kind in SPECULATIVE for mode in ("", "_async")},
    **{kind: ranks if kind == "spec_dp" else speculative for kind in TOGETHER},
}


def decide(kind: str, case: Case) -> Any:
    """What batchlab decides on a case of this kind. ValueError for a kind whose feature it does not have."""
    if kind not in DECIDES:
        raise ValueError(f"batchlab decides no cases of the kind {kind!r}; it decides: {', '.join(DECIDES)}")
    return DECIDES[kind](case)
