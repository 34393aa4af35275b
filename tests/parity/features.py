"""Decisions of batchlab's own parts on cases of vLLM's features, in the format of the recorded files.

`decide` makes what a case describes, lets the parts that a run is put together from decide, and returns what the
records hold. It decides nothing itself.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

from simulator.engine.admission import Admission, QueueCaps
from simulator.engine.replica_load import ReplicaLoad
from simulator.fleet.replicas import Replicas
from simulator.fleet.routers.vllm_dp import VllmDp
from simulator.fleet.signals import Signals
from simulator.fleet.windows import Signal
from simulator.metrics.vllm_metrics import QUEUE_LIMITS
from simulator.request import ArrivingRequest, Request
from simulator.request_state import DecodeClock, RequestState
from simulator.simulate import simulate_fleet
from simulator.timing.cost import StepShape
from simulator.timing.linear_cost import Linear
from tests.parity.cases import cost_of, decisions_of, group_of, workload_of

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
            request: Any = SimpleNamespace(row=row)
            if rank is None:
                load = router.choose(request, signals.replicas)
                signals.sent(load)
                rank = load.index
            else:
                router.sent(row, server, rank)
            chosen.append(rank)
    return chosen


def idle(rank: int) -> Any:
    """An idle rank. Its use of KV is shown as a share: it has one block."""
    return SimpleNamespace(
        index=rank, group="default", max_num_seqs=1, num_blocks=1, num_waiting=0, num_running=0, used_blocks=0
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


class GivenRanks:
    """Sends each request to the rank that the case gives it."""

    reads_loads = False

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        return replicas[self._ranks[request.row]]


class SlowestRank:
    """A common step lasts as long as the longest of the ranks'; a dummy batch is of one token."""

    def __init__(self, cost: Linear) -> None:
        self._cost = cost

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        dummy_s = self._cost.base_s + self._cost.per_token_s
        return max(self._cost.step_s(shape) if shape.tokens else dummy_s for shape in shapes)


def ranks(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The common steps of ranks in lockstep, with what each rank decides in them."""
    count = case["dp"]["ranks"]
    group = group_of(case, replicas=count, group_cost=SlowestRank(cost_of(case)))
    requests = sorted(case["requests"], key=lambda r: r["arrival_time"])
    run = simulate_fleet(
        workload_of(case), [group], router=GivenRanks([r["rank"] for r in requests]), log_decisions=True
    )
    assert run.decisions is not None
    logs = [[step for step in run.decisions if step["replica"] == rank] for rank in range(count)]
    return [{"ranks": steps, "t_end": steps[0]["t_end_s"]} for steps in zip(*logs, strict=True)]


def engine_steps(case: dict[str, Any]) -> list[dict[str, Any]]:
    """What the engine decides step by step, with the harness's names for times and aborts.

    `aborted` names those that gave up before the step was planned, and came when the one before it had been. The log
    names with a step all who gave up since it was planned.
    """
    came = {r["id"]: r["arrival_time"] for r in case["requests"]}
    early = {r["id"] for r in case["requests"] if r.get("abort_time") is not None}
    steps = decisions_of(case, fast_forward=len(came) % 2 == 0, by_id=len(came) % 3 == 0)
    named = [set(step.get("aborted", ())) for step in steps]
    aborted = early.difference(*named, *(step["finished"] for step in steps))  # before the first step
    for step, with_it in zip(steps, named, strict=True):
        planned_s = step.get("t_schedule_s", step["t_start_s"])
        step["aborted"] = {name: "waiting" for name in came if name in aborted and came[name] <= planned_s}
        aborted = {name for name in with_it if came[name] > planned_s}
        step["t_end"] = step["t_end_s"]
    return steps


DECIDES: Mapping[str, Callable[[Any], Any]] = {
    "balancer": balancer,
    "queue_caps": queue_caps,
    "dp": ranks,
    **dict.fromkeys(("cadence", "cadence_async", "abort", "abort_async"), engine_steps),
}


def decide(kind: str, case: Case) -> Any:
    """What batchlab decides on a case of this kind. ValueError for a kind whose feature it does not have."""
    if kind not in DECIDES:
        raise ValueError(f"batchlab decides no cases of the kind {kind!r}; it decides: {', '.join(DECIDES)}")
    return DECIDES[kind](case)
