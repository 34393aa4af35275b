"""A scenario's decisions beside those of a real scheduler, which is told the same requests, results and aborts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from scenarios.assembly.fleet_parts import BuiltGroup, build_fleet, build_link, build_router
from scenarios.assembly.replica_parts import check_parts, parts_of
from scenarios.assembly.workloads import build_workload, check_content
from scenarios.schema.scenario import Scenario
from simulator.goes_with import APART, KV_GROUPS, REAL, REAL_SGLANG
from simulator.plan import Policy, StepPlan, View
from simulator.policies import REAL_POLICIES
from simulator.policies.real.asked import (
    SGLANG,
    EngineName,
    EngineProcess,
    Memory,
    SchedulerError,
    TokenBlocks,
    engine_settings,
    scenario_key,
    told_request,
    told_results,
)
from simulator.policy_traits import ABILITIES
from simulator.request import Request, RequestView
from simulator.simulate import simulate_fleet
from simulator.speculative import Drafting

# Where two schedulers part: one step's decisions compared, and the first difference in words.

_PLANNED = {  # our key -> theirs; in the order in which a plan follows from what came before
    "preempted": "preempted",
    "scheduled": "scheduled",
    "spec": "spec",
    "admitted": "admitted",
    "running": "running",
    "waiting": "waiting",
    "num_free_blocks": "free",
}
_WORDS = {
    "preempted": "preempts {}",
    "scheduled": "computes {}",
    "order": "computes in the order {}",
    "spec": "verifies {}",
    "admitted": "finds in its prefix cache {}",
    "running": "has running {}",
    "waiting": "leaves waiting {}",
    "num_free_blocks": "has {} free blocks",
    "finished": "finishes {}",
    "num_free_blocks_end": "has {} free blocks when the step is over",
}
_TOKENS = ("scheduled", "spec", "admitted")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference: the step (of its replica), when it was planned, and what each side decided of `key`.

    Of a mapping by request only the requests that differ; `order` is that in which requests take their share.
    """

    step: int
    t_s: float
    key: str
    theirs: Any
    ours: Any
    replica: int = 0

    def entry(self) -> dict[str, object]:
        """The difference as `--json` prints it."""
        return {"step": self.step, "t_s": self.t_s, "key": self.key, "theirs": self.theirs, "ours": self.ours}

    def words(self, title: str) -> str:
        """The difference in a sentence; `title` names the engine."""
        where = f"step {self.step:,} at {round(self.t_s, 6)} s" + (
            f" of replica {self.replica}" if self.replica else ""
        )
        said = _WORDS[self.key]
        theirs, ours = said.format(_shown(self.key, self.theirs)), said.format(_shown(self.key, self.ours))
        return f"first difference in {where}: {title} {theirs}; batchlab {ours}"


def after_plan(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Difference | None:
    """The first difference between a step's plan of ours and one of theirs; None if they are equal."""
    found = {**theirs, "preempted": [request_id for request_id, _ in theirs["preempted"]]}
    for key, name in _PLANNED.items():
        if name not in found or key not in ours:
            continue  # SGLang has its running requests in several places; drafts are not everywhere
        a, b = ours[key], found[name]
        if a != b:
            if isinstance(a, Mapping):
                different = [request_id for request_id in {**a, **b} if a.get(request_id) != b.get(request_id)]
                a, b = [{name: side[name] for name in different if name in side} for side in (a, b)]
            return _difference(ours, key, b, a)
        if key == "scheduled" and list(a) != list(b):
            return _difference(ours, "order", list(b), list(a))
    return None


def after_results(settled: Sequence[Mapping[str, Any]], theirs: Mapping[str, Any]) -> Difference | None:
    """The first difference in what steps left behind when their results were there.

    A step that waits for results computes nothing, and leaves what the one before it did.
    """
    for ours, finished in zip(settled, theirs["finished"], strict=True):
        if sorted(ours["finished"]) != sorted(finished):
            return _difference(ours, "finished", finished, ours["finished"])
    last = next((each for each in reversed(settled) if each["scheduled"]), None)
    if last is not None and last["num_free_blocks_end"] != theirs["free_before"]:
        return _difference(last, "num_free_blocks_end", theirs["free_before"], last["num_free_blocks_end"])
    return None


def _difference(ours: Mapping[str, Any], key: str, theirs: Any, own: Any) -> Difference:
    return Difference(ours["step"], ours.get("t_schedule_s", ours["t_start_s"]), key, theirs, own)


def _shown(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        of = "drafts" if key == "spec" else "tokens"
        listed = [f"{tokens:,} {of} of {name}" for name, tokens in value.items()]
    elif isinstance(value, list):
        listed = [str(name) for name in value]
    else:
        return f"{value:,}"
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return (", ".join(listed[:_SHOWN]) + more) if listed else "nothing" if key in _TOKENS else "none"


Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parity:
    """The outcome: `steps` compared, and where the two first differ, if they do."""

    engine: str
    version: str
    steps: int
    difference: Difference | None

    def entry(self) -> dict[str, object]:
        """The outcome as `--json` prints it."""
        return {
            "engine": self.engine,
            "version": self.version,
            "steps": self.steps,
            "equal": self.difference is None,
            "first_difference": None if self.difference is None else self.difference.entry(),
        }


class Noted:
    """A policy that decides as the one it is made of; the requests of its replica are noted in `requests`, by id."""

    def __init__(self, policy: Policy, requests: dict[str, Request]) -> None:
        self._policy = policy
        self._requests = requests
        self.max_num_seqs = policy.max_num_seqs
        self.companion = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def plan(self, view: View) -> StepPlan:
        return self._policy.plan(view)

    def arrived(self, request: Request, view: RequestView) -> None:
        """See `simulator.policy_traits.Companion`."""
        self._requests[request.request_id] = request

    def ended(self, row: int, *, aborted: bool) -> None:
        """See `simulator.policy_traits.Companion`."""


def compare(scenario: Scenario, process: EngineProcess, *, steps: int | None = None) -> Parity:
    """Run the scenario and hold every step of each replica, the first `steps` at most, against the real scheduler.

    Raises InputError for a scenario that no single scheduler serves, and for a setting that the engine does not have.
    """
    fleet = build_fleet(scenario)
    of_replicas = [(built.group.scenario, settings) for built in fleet for settings in _settings(built, process.engine)]
    requests, decisions = _decided(scenario, fleet)
    done = 0
    for replica, records in groupby(decisions, key=lambda record: int(record["replica"])):
        group, settings = of_replicas[replica]
        try:
            process.start(settings)
        except SchedulerError as error:
            key = scenario_key(error.key or "policy")
            raise group.error(f"engine.{key}", error.message, None) from None
        beside = _Beside(process, requests, TokenBlocks.of_settings(settings), 2 if settings["async_scheduling"] else 1)
        for record in records:
            if steps is not None and record["step"] >= steps:
                break
            difference = beside.step(record)
            if difference is not None:
                return Parity(process.engine, process.version, done, replace(difference, replica=replica))
            done += 1
        else:  # to the end: after a cut the next plan, which comes before the last results, is not known
            difference = beside.end()
            if difference is not None:
                return Parity(process.engine, process.version, done, replace(difference, replica=replica))
    return Parity(process.engine, process.version, done, None)


def _noted(built: BuiltGroup, requests: dict[str, Request]) -> Callable[[], Noted]:
    def make() -> Noted:
        policy = built.parts.make_policy()
        made: type[Noted] = type("Noted", (Noted,), {name: getattr(policy, name, False) for name in ABILITIES})
        return made(policy, requests)

    return make


def _settings(built: BuiltGroup, engine: EngineName) -> list[dict[str, Any]]:
    """The settings of each of a group's replicas for the real scheduler. InputError for what cannot be compared."""
    scenario, speculation = built.group.scenario, built.replicas.speculation
    if scenario.engine.policy in REAL_POLICIES:
        what = "a real scheduler would be compared with itself"
        raise scenario.error("engine.policy", what, "give the policy that stands for it: vllm or sglang")
    parts = [*parts_of(scenario), REAL_SGLANG if engine == SGLANG else REAL]
    parts += [] if built.group.role == "both" else [APART]
    check_parts(scenario, parts if built.parts.kv_plan is None else [*parts, KV_GROUPS])
    drafting = None if speculation is None else Drafting(speculation.config, speculation.max_model_len)
    memory = Memory(built.replicas.usable_blocks, scenario.engine.block_size, scenario.engine.enable_prefix_caching)
    return [engine_settings(engine, built.parts.make_policy(), memory, drafting=drafting)] * built.group.replicas


def _decided(scenario: Scenario, fleet: Sequence[BuiltGroup]) -> tuple[dict[str, Request], Sequence[Record]]:
    """The requests that entered a queue, by id, and every step that was decided, replica by replica."""
    workload = build_workload(scenario)
    check_content(scenario, workload)
    requests: dict[str, Request] = {}
    run = simulate_fleet(
        workload,
        [replace(each.replicas, make_policy=_noted(each, requests)) for each in fleet],
        router=build_router(scenario),
        signal_interval_s=scenario.routing.interval_s,
        slo=scenario.resolve_slo(),
        link=build_link(scenario),
        log_decisions=True,
        front_end=scenario.resolve_front_end(),
    )
    assert run.decisions is not None
    return requests, sorted(run.decisions, key=lambda record: int(record["replica"]))


class _Beside:
    """One replica's records, told to the real scheduler step by step."""

    def __init__(
        self, process: EngineProcess, requests: Mapping[str, Request], tokens: TokenBlocks | None, depth: int
    ) -> None:
        self._process = process
        self._requests = requests
        self._tokens = tokens
        self._depth = depth
        self._seen: set[str] = set()
        self._there: set[str] = set()  # unfinished, as far as the scheduler has been told
        self._in_flight: list[Record] = []
        self._aborted: list[str] = []  # since the last plan

    def step(self, record: Record) -> Difference | None:
        """Tell what came before this step, ask for its plan, and compare it."""
        if self._in_flight and _planned_s(record) > self._in_flight[-1]["t_end_s"] and self._is_last():
            rested = self.end()  # the server had nothing to do
            if rested is not None:
                return rested
        settled = self._settled(record)
        new = [request for request in self._new(record) if request.request_id not in self._seen]
        arrived = [told_request(request, self._tokens) for request in new]
        names = [request.request_id for request in new]
        self._seen.update(names)
        self._there.update(names)
        found = self._process.step(aborted=self._taken(), results=self._results(settled), arrived=arrived)
        difference = after_results(settled, found) or after_plan(record, found)
        self._in_flight.append(record)
        self._aborted = [request_id for request_id in record.get("aborted", ()) if request_id in self._there]
        self._there.difference_update(self._aborted)
        return difference

    def end(self) -> Difference | None:
        """Tell the last results, and compare who finishes with them."""
        settled, self._in_flight = self._in_flight, []
        self._there.difference_update(*[each["finished"] for each in settled])
        found = self._process.step(aborted=self._taken(), results=self._results(settled), plan=False)
        return after_results(settled, found)

    def _is_last(self) -> bool:
        """Whether no request is there any more when the steps in flight are over."""
        return not self._there.difference(*[each["finished"] for each in self._in_flight])

    def _results(self, settled: Sequence[Record]) -> list[dict[str, object]]:
        """What the scheduler is told of these steps."""
        return [told_results(each["finished"], each.get("emitted"), _drafts(each)) for each in settled]

    def _new(self, record: Record) -> Iterator[Request]:
        """The requests of the record in order of arrival."""
        names = {*record["waiting"], *record["running"]} - self._seen
        return iter(sorted([self._requests[name] for name in names], key=lambda each: (each.arrival_s, each.row)))

    def _settled(self, record: Record) -> list[Record]:
        """The steps whose results are there before this one is planned: all of them in a server at rest."""
        count = max(0, len(self._in_flight) - self._depth + 1)
        if self._in_flight and _planned_s(record) >= self._in_flight[-1]["t_end_s"]:
            count = len(self._in_flight)
        settled, self._in_flight = self._in_flight[:count], self._in_flight[count:]
        self._there.difference_update(*[each["finished"] for each in settled])
        return settled

    def _taken(self) -> list[str]:
        aborted, self._aborted = self._aborted, []
        return aborted


def _drafts(record: Record) -> dict[str, int]:
    """The drafts that the requests of a step are given at its end."""
    count = 0 if record.get("skip_drafts") else record.get("next_k", 0)
    return dict.fromkeys(record["scheduled"], count)


def _planned_s(record: Record) -> float:
    return float(record.get("t_schedule_s", record["t_start_s"]))
