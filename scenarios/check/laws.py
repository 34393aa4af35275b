"""The laws that a policy is held to, a small function each."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.check.law_trial import Breach, Experiment, asynchronous, differences, first_difference
from simulator.plan import Policy, StepPlan, View
from simulator.policy_traits import OptionalMembers
from simulator.request import RequestView
from simulator.request_state import DecodeClock, RequestState
from simulator.results.records import Records, Status
from simulator.simulate import Run
from simulator.workload import Ints, Workload

# The budgets of a step: slots and tokens.


def budgets(experiment: Experiment, run: Run) -> Breach | None:
    """A step computes at most max_num_batched_tokens tokens, for at most max_num_seqs requests.

    Padding and the tokens of held requests count like any other; a paused request needs no slot. A policy without
    `max_num_batched_tokens` has no budget of tokens.
    """
    rows = run.records.rows
    slots, budget = experiment.policy.max_num_seqs, OptionalMembers.of(experiment.policy).max_num_batched_tokens
    for verb, noun, column, name, limit in (
        ("runs", "requests", rows.running, "max_num_seqs", slots),
        ("computes", "tokens", rows.tokens, "max_num_batched_tokens", budget),
    ):
        over = np.flatnonzero(column > limit)
        if len(over):
            row = over[0]
            what = f"{verb} {column[row]} {noun}; {name} is {limit}"
            return Breach(what, int(rows.first_step[row]), float(rows.start_s[row]))
    for step in run.decisions or []:
        if len(step["scheduled"]) > slots:
            what = f"schedules {len(step['scheduled'])} requests; max_num_seqs is {slots}"
            return Breach.at(step, what)
    return None


# Conservation: no request, token or block is lost, made up or counted twice.


def conservation(experiment: Experiment, run: Run) -> Breach | None:
    """Submitted = finished + rejected + aborted + unfinished, each in one place at each step; tokens likewise."""
    return ends_once(experiment, run) or one_place(experiment, run) or tokens(experiment, run)


def ends_once(experiment: Experiment, run: Run) -> Breach | None:
    """Each request has one end; the log tells of each finish and abort once, and rejected requests are in no step."""
    records, decisions = run.records, run.decisions or []
    requests = records.requests
    if requests.row.tolist() != list(range(len(experiment.workload))):
        return Breach(f"{len(experiment.workload)} requests were submitted, {len(requests.row)} ended")
    finished, aborted = _names(records, Status.FINISHED), _names(records, Status.ABORTED)
    rejected = np.flatnonzero(requests.status == Status.REJECTED)
    if sorted(records.reject_reasons) != rejected.tolist() or not all(records.reject_reasons.values()):
        return Breach(f"reasons are given for {sorted(records.reject_reasons)}, rejected are {rejected.tolist()}")
    told = Counter(request_id for step in decisions for request_id in step["finished"])
    if told != Counter(finished):
        return Breach(f"finished are {sorted(finished)}, the steps tell of {dict(told)}")
    told = Counter(request_id for step in decisions for request_id in step.get("aborted", []))
    if not told <= Counter(aborted):
        return Breach(f"aborted are {sorted(aborted)}, the steps tell of {dict(told)}")
    seen = {request_id for step in decisions for request_id in step["running"] + step["waiting"]}
    if turned_away := sorted(seen & _names(records, Status.REJECTED)):
        return Breach(f"rejected requests {turned_away} wait or run")
    done = requests.status == Status.FINISHED
    if not np.isnan(requests.scheduled_s[rejected]).all() or np.isnan(requests.last_token_s[done]).any():
        return Breach("a rejected request was scheduled, or a finished one has no last token")
    return None


def one_place(experiment: Experiment, run: Run) -> Breach | None:
    """At every step each request that has arrived, and neither finished nor was aborted, either waits or runs.

    The log does not tell of requests that were aborted before their replica's first step.
    """
    records, decisions = run.records, run.decisions or []
    requests = records.requests
    told = {request_id for step in decisions for request_id in step.get("aborted", [])}
    gone = {records.request_id(row) for row in records.reject_reasons} | (_names(records, Status.ABORTED) - told)
    unknown: dict[int, dict[str, Any]] = {}  # a replica's last step: while it runs no plan knows who finished with it
    for step in sorted(decisions, key=lambda step: float(step["t_end_s"])):
        planned_s = step.get("t_schedule_s", step["t_start_s"])
        last = unknown.get(step["replica"])
        if last is not None and planned_s >= last["t_end_s"] > last["t_start_s"]:  # the plan waited for the results
            gone.update(unknown.pop(step["replica"])["finished"])
        arrived = np.flatnonzero((requests.arrival_s <= planned_s) & (requests.replica == step["replica"]))
        expected = Counter({records.request_id(row) for row in arrived.tolist()} - gone)
        here = Counter(step["running"] + step["waiting"])
        if here != expected:
            wrong = sorted((here - expected) + (expected - here))
            return Breach.at(step, f"request {wrong[0]} is in {here[wrong[0]]} places, not {expected[wrong[0]]}")
        if not set(step["scheduled"]) <= set(step["running"]):
            return Breach.at(step, f"schedules {sorted(step['scheduled'])}, running are {step['running']}")
        gone.update(step.get("aborted", []))
        if last := unknown.pop(step["replica"], None):
            gone.update(last["finished"])
        if asynchronous(experiment):
            unknown[step["replica"]] = step
        else:
            gone.update(step["finished"])
    return None


def tokens(experiment: Experiment, run: Run) -> Breach | None:
    """The steps compute a request's prompt, its output but for the last token, and the tokens that were lost.

    With asynchronous scheduling an answer that ends before its cap may be given one token more.
    """
    records, workload = run.records, experiment.workload
    requests, rows = records.requests, records.rows
    finished = requests.status == Status.FINISHED
    allowed = allowed_tokens(experiment, run)
    answer = np.minimum(workload.output_tokens, allowed)
    computed: Counter[str] = Counter()
    for step in run.decisions or []:
        computed.update(step["scheduled"])
    needed = requests.input_tokens + requests.output_tokens - 1 + requests.recomputed_tokens - requests.cached_tokens
    wasted = 0
    for row in np.flatnonzero(finished).tolist():
        name = records.request_id(row)
        if requests.output_tokens[row] != answer[row]:
            return Breach(
                f"request {name} got {requests.output_tokens[row]} output tokens, its answer has {answer[row]}"
            )
        more = computed[name] - int(needed[row])
        most = int(asynchronous(experiment) and answer[row] < allowed[row])
        if not 0 <= more <= most:
            return Breach(f"the steps computed {computed[name]} tokens of request {name}, which needed {needed[row]}")
        wasted += more
    aborted = np.flatnonzero(requests.status == Status.ABORTED)
    for row in aborted.tolist():
        name, told = records.request_id(row), int(requests.aborted_tokens[row])
        if computed[name] != told:
            return Breach(f"the steps computed {computed[name]} tokens of request {name}, aborted after {told}")
        if requests.output_tokens[row] > answer[row]:
            return Breach(f"request {name}, which was aborted, got more tokens than its answer has")
    real = int(((rows.tokens - rows.padded_tokens) * rows.repeat).sum())
    # A step may have given an aborted request one token too many, too.
    most = len(aborted) if asynchronous(experiment) else 0
    if not 0 <= sum(computed.values()) - wasted - real <= most:
        return Breach(f"the decisions name {sum(computed.values()) - wasted} tokens, the step rows {real}")
    odd = np.flatnonzero(rows.tokens != rows.decoding + rows.prefill_tokens + rows.padded_tokens)
    if len(odd):
        return Breach("a step's tokens are not those of its parts", int(rows.first_step[odd[0]]))
    return None


def allowed_tokens(experiment: Experiment, run: Run) -> NDArray[np.int64]:
    """`max_tokens` of each request, or less where the server allows less."""
    asked = experiment.workload.max_tokens
    caps = OptionalMembers.of(experiment.policy).caps
    if caps is None:
        return asked
    num_blocks, block_size = run.records.num_blocks, run.records.block_size
    seen = (RequestState(request, DecodeClock(block_size)) for request in experiment.workload.requests())
    most = np.array([caps(request, num_blocks, block_size) for request in seen], dtype=np.int64)
    return np.where(most >= 1, np.minimum(most, asked), asked)


def blocks(experiment: Experiment, run: Run) -> Breach | None:
    """Used blocks lie between none and all of them, and hold the tokens of the step's requests.

    That none leaks is checked while it runs (`scenarios.check.law_trial`).
    """
    records = run.records
    rows, used = records.rows, records.step_used_blocks
    wrong = np.flatnonzero((used < 0) | (used > records.num_blocks))
    if len(wrong):
        return Breach(f"{used[wrong[0]]} blocks are used, of {records.num_blocks}", int(wrong[0]))
    room = used[rows.first_step] * records.block_size
    # Held requests compute beyond what they keep.
    wrong = np.flatnonzero((rows.context_tokens > room) & (rows.held == 0))
    if len(wrong) and not records.requests.cached_tokens.any():
        row = wrong[0]
        what = f"{rows.context_tokens[row]} tokens in blocks for {room[row]}"
        return Breach(what, int(rows.first_step[row]), float(rows.start_s[row]))
    return None


def _names(records: Records, status: Status) -> set[str]:
    """The ids of the requests that ended so."""
    return {records.request_id(row) for row in np.flatnonzero(records.requests.status == status).tolist()}


# Service: every request is served, equals in the order of their arrival, and no engine rests while one waits.


def service(experiment: Experiment, run: Run) -> Breach | None:
    """Every request that is not rejected on arrival finishes; none starves, and none stays paused for ever."""
    requests = run.records.requests
    left = np.flatnonzero(requests.status == Status.UNFINISHED)
    if not len(left):
        return None
    row = int(left[0])
    ever = "was never scheduled" if np.isnan(requests.scheduled_s[row]) else "is in the batch or preempted"
    others = f" and {len(left) - 1} more" if len(left) > 1 else ""
    what = (
        f"the run ends with request {run.records.request_id(row)}{others} unserved: it {ever}, with "
        f"{requests.output_tokens[row]} output tokens, and the policy plans nothing more"
    )
    ends = run.records.step_end_s
    return Breach(what, time_s=float(max([*ends, requests.arrival_s[row]])))


@dataclass(frozen=True, slots=True)
class Rest:
    """A time in which a replica did nothing, and the rows of the requests that waited at its end, by arrival."""

    from_s: float
    to_s: float
    waiting: list[int]


def rests(records: Records) -> Iterator[Rest]:
    """Yield all rests of all replicas, also the one before the first step and the one after the last."""
    requests, rows = records.requests, records.rows
    for replica in range(records.replicas):
        mine = rows.replica == replica
        starts = [*rows.start_s[mine].tolist(), np.inf]
        ends = [-1.0, *rows.end_s[mine].tolist()]
        here = (requests.replica == replica) & (requests.status != Status.REJECTED)
        for from_s, to_s in zip(ends, starts, strict=True):
            if to_s > from_s:
                waits = here & (requests.arrival_s <= to_s) & ~(requests.last_token_s <= from_s)
                yield Rest(from_s, to_s, np.flatnonzero(waits).tolist())


def work(experiment: Experiment, run: Run) -> Breach | None:
    """The engine does not rest while a request waits: nothing runs then, so the whole memory is there for it."""
    records = run.records
    for rest in rests(records):
        late = [row for row in rest.waiting if records.requests.arrival_s[row] < rest.to_s]
        if late and rest.to_s != np.inf:
            from_s = max(rest.from_s, float(records.requests.arrival_s[late[0]]))
            what = f"rests {rest.to_s - from_s:g} s while request {records.request_id(late[0])} waits"
            return Breach(what, time_s=from_s)
    return None


def order(experiment: Experiment, run: Run) -> Breach | None:
    """Of two requests that a policy sees as equals but for their arrival, the first to come is scheduled first."""
    records, workload = run.records, experiment.workload
    requests = records.requests
    first: dict[tuple[float, ...], int] = {}  # of each kind, the one scheduled last so far
    for row in np.lexsort((requests.row, requests.arrival_s)).tolist():
        seen = (workload.input_tokens, workload.max_tokens, workload.priority, workload.class_index, requests.replica)
        kind = tuple(int(column[row]) for column in seen)
        since_s = requests.scheduled_s[row]
        if np.isnan(since_s):
            continue
        before = first.setdefault(kind, row)
        if since_s < requests.scheduled_s[before]:
            names = records.request_id(row), records.request_id(before)
            what = f"request {names[0]} is scheduled before request {names[1]}, which came first and looks the same"
            return Breach(what, time_s=float(since_s))
        first[kind] = row
    return None


# Causality: nothing happens before its cause, in the records or in what a policy knows.


def causality(experiment: Experiment, run: Run) -> Breach | None:
    """Arrival <= scheduled < first token <= last token <= released, and a replica's clock never goes back."""
    return goes_forward(experiment, run) or clock(experiment, run)


def goes_forward(experiment: Experiment, run: Run) -> Breach | None:
    """Every request goes through its times in order, and waits again only between its first schedule and its end."""
    records = run.records
    requests, requeues = records.requests, records.requeues
    done = requests.status == Status.FINISHED
    several = done & (requests.output_tokens > 1) & records.streams
    names = ("arrival_s", "scheduled_s", "first_token_s", "last_token_s", "released_s")
    times = {name: getattr(requests, name) for name in names}
    pairs = [(one, other, done & ~(times[one] <= times[other])) for one, other in pairwise(names)]
    pairs += [
        ("scheduled_s", "first_token_s", done & ~(requests.scheduled_s < requests.first_token_s)),
        ("first_token_s", "last_token_s", several & ~(requests.first_token_s < requests.last_token_s)),
        ("last_token_s", "first_token_s", done & ~several & (requests.first_token_s != requests.last_token_s)),
    ]
    for one, other, broken in pairs:
        if broken.any():
            row = int(np.flatnonzero(broken)[0])
            name, earlier, later = records.request_id(row), times[one][row], times[other][row]
            return Breach(f"request {name}: {one} is {earlier:g}, {other} {later:g}", time_s=float(earlier))
    ends = requests.last_token_s[requeues.row]
    # With asynchronous scheduling a victim's last token may come while it waits.
    late = (requeues.to_s > ends) if asynchronous(experiment) else (requeues.to_s >= ends)
    broken = (requeues.from_s < requests.scheduled_s[requeues.row]) | (requeues.to_s < requeues.from_s) | late
    if broken.any():
        entry = int(np.flatnonzero(broken)[0])
        what = f"request {records.request_id(int(requeues.row[entry]))} waits again outside of its service"
        return Breach(what, time_s=float(requeues.from_s[entry]))
    return None


def clock(experiment: Experiment, run: Run) -> Breach | None:
    """Steps of a replica follow each other and do not overlap; a step with tokens takes time."""
    records = run.records
    rows = records.rows
    for replica in range(records.replicas):
        mine = np.flatnonzero(rows.replica == replica)
        steps = [records.step_end_s[rows.first_step[i] : rows.first_step[i] + rows.repeat[i]] for i in mine]
        ends = np.concatenate([[0.0], *steps])
        took, computes = np.diff(ends), np.repeat(rows.tokens[mine] > 0, rows.repeat[mine])
        wrong = np.flatnonzero((took < 0) | ((took == 0) & computes))
        if len(wrong):
            end_s, before_s = ends[wrong[0] + 1], ends[wrong[0]]
            return Breach(f"the step ends at {end_s:g} s, the one before at {before_s:g} s", int(wrong[0]))
        wrong = np.flatnonzero(rows.start_s[mine][1:] < rows.end_s[mine][:-1])
        if len(wrong):
            row = mine[1:][wrong[0]]
            return Breach("the step begins before the one before has ended", int(rows.first_step[row]))
        wrong = np.flatnonzero((rows.start_s[mine] >= rows.end_s[mine]) & (rows.tokens[mine] > 0))
        if len(wrong):
            return Breach("a step with tokens takes no time", int(rows.first_step[mine[wrong[0]]]))
    return None


def future(experiment: Experiment, run: Run) -> Breach | None:
    """Decisions before the last arrival are the same without it."""
    arrival_s = experiment.workload.arrival_s
    return blind_to(experiment, run, int(np.searchsorted(arrival_s, arrival_s[-1])))


def blind_to(experiment: Experiment, run: Run, cut: int) -> Breach | None:
    """Decisions before request `cut` arrives are those of a run without it and all that come later."""
    until_s = experiment.workload.arrival_s[cut] if cut < len(experiment.workload) else np.inf
    if until_s == 0.0:
        return None
    part = experiment.on(first_requests(experiment.workload, cut)).run(log_decisions=True, fast_forward=False)

    def before(steps: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        return [step for step in steps or [] if step["t_start_s"] < until_s]

    told = (" with all requests", f" without the arrivals from {until_s:g} s on")
    return first_difference(before(run.decisions), before(part.decisions), told)


def first_requests(workload: Workload, count: int) -> Workload:
    """Return the first `count` requests."""
    return replace(workload, **{name: column[:count] for name, column in workload.columns().items()})


def oracle(experiment: Experiment, run: Run) -> Breach | None:
    """With other output lengths below the same caps, decisions differ only after a request finished at another time."""
    breaches = (blind_to_lengths(experiment, run, lengths) for lengths in other_lengths(experiment.workload, run))
    return next((found for found in breaches if found is not None), None)


def other_lengths(workload: Workload, run: Run) -> list[Ints]:
    """Return other lengths within the caps and the memory: in reversed order, and with every other one halved."""
    true = np.minimum(workload.output_tokens, workload.max_tokens)
    mirrored = np.minimum(true.max() + true.min() - true, workload.max_tokens)
    halved = np.where(np.arange(len(true)) % 2 == 0, np.maximum(true // 2, 1), true)
    # A length that never fits is a rejection, by the engine: those that fit must go on to do so, and the others not.
    most = run.records.num_blocks * run.records.block_size - workload.input_tokens + 1
    rejected = run.records.requests.status == Status.REJECTED
    fits = [np.where(rejected, true, np.minimum(lengths, most)) for lengths in (mirrored, halved)]
    return [lengths for lengths in fits if (lengths != true).any()]


def blind_to_lengths(experiment: Experiment, run: Run, lengths: Ints) -> Breach | None:
    """Decisions are those of a run with these true lengths, until a step in which other requests finish."""
    changed = experiment.on(replace(experiment.workload, output_tokens=lengths))
    other = changed.run(log_decisions=True, fast_forward=False)
    if set(other.records.reject_reasons) != set(run.records.reject_reasons):
        rows = sorted(set(other.records.reject_reasons) ^ set(run.records.reject_reasons))
        return Breach(f"whether request {run.records.request_id(rows[0])} is refused depends on its true length")
    until_s = min(
        _first_effect_s(run.decisions or [], other.decisions or [], replica) for replica in range(run.records.replicas)
    )
    one, two = [
        [{key: step[key] for key in step if key not in _EFFECTS} for step in steps or [] if step["t_start_s"] < until_s]
        for steps in (run.decisions, other.decisions)
    ]
    alike = f" with true output lengths {lengths.tolist()}"
    return first_difference(one, two, (f" with {experiment.workload.output_tokens.tolist()}", alike))


_EFFECTS = ("finished", "num_free_blocks_end")


def _first_effect_s(one: list[dict[str, Any]], two: list[dict[str, Any]], replica: int) -> float:
    """Return the end of the replica's first step in which other requests finish; infinity without one."""
    mine = [[step for step in steps if step["replica"] == replica] for steps in (one, two)]
    for left, right in zip(*mine, strict=False):
        if left["finished"] != right["finished"]:
            return min(float(left["t_end_s"]), float(right["t_end_s"]))
    return float("inf")


# plan() is pure: the same view gives the same plan, and nothing changes.

SEEN_OF_A_REQUEST = [name for name in vars(RequestView) if not name.startswith("_")]
SEEN_OF_A_VIEW = [name for name in vars(View) if not name.startswith("_")]


class ImpureError(Exception):
    """A plan depends on more than its view, or planning changed something."""

    def __init__(self, breach: Breach) -> None:
        super().__init__(breach)  # as SimPy copies it
        self.breach = breach


def purity(experiment: Experiment, run: Run) -> Breach | None:
    """Asked twice for one view, and afresh, a policy makes the same plan; neither the view nor the policy changes."""
    policy = experiment.new_policy()
    try:
        experiment.run(make_policy=lambda: AskedTwice(deepcopy(policy), experiment.new_policy), fast_forward=False)
    except ImpureError as error:
        return error.breach
    return None


def snapshot(view: View) -> dict[str, Any]:
    """Copy everything that a policy can see: numbers, orders, and every member of every request."""
    seen: dict[str, Any] = {}
    for name in SEEN_OF_A_VIEW:
        value = getattr(view, name)
        if name in ("waiting", "running", "prefilling"):
            seen[name] = [{key: getattr(request, key) for key in SEEN_OF_A_REQUEST} for request in value]
            seen[f"len({name})"] = len(value)
        else:
            seen[name] = value
    return seen


@dataclass(slots=True)
class AskedTwice:
    """A policy that is asked twice at every step, and looked at before, between and after.

    `new_policy` makes one that has seen no step before; it costs a reading of the policy's file, and so is asked for
    the first plan, the second, the fourth, the eighth, ... `looks` collects what was seen.
    """

    inner: Any
    new_policy: Callable[[], Policy] | None = None
    looks: list[Mapping[str, Any]] = field(default_factory=list)
    asked: int = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def max_num_seqs(self) -> int:
        return int(self.inner.max_num_seqs)

    def plan(self, view: View) -> StepPlan:
        self.asked += 1
        state, before = _state(self.inner), snapshot(view)
        once: StepPlan = self.inner.plan(view)
        self._unchanged(view, before, state)
        again: StepPlan = self.inner.plan(view)
        self._unchanged(view, before, state)
        self._same(view, once, again, "asked again for the same view, it")
        if self.asked & (self.asked - 1) == 0 and (fresh := self._fresh(view, once)) is not None:
            self._same(view, once, fresh.plan(view), "a policy that has seen no step before")
            self._unchanged(view, before, state)
        self.looks.append(before)
        return again

    def _fresh(self, view: View, plan: StepPlan) -> Policy | None:
        """Return a fresh policy; None where a note has a class of the policy's file: a new load has another class."""
        own = type(self.inner).__module__
        if self.new_policy is None or own in (type(view.note).__module__, type(plan.note).__module__):
            return None
        return self.new_policy()

    def _unchanged(self, view: View, before: Mapping[str, Any], state: Mapping[str, str]) -> None:
        now = snapshot(view)
        for name, value in before.items():
            if now[name] != value:
                raise self._impure(view, f"planning changes the view: {_change(name, value, now[name])}")
        after = _state(self.inner)
        for name, text in after.items():
            if text != state.get(name):
                was = _brief(state.get(name, "not there"))
                raise self._impure(view, f"planning changes the policy: {name} was {was}, is {_brief(text)}")

    def _same(self, view: View, plan: StepPlan, other: StepPlan, whose: str) -> None:
        if plan == other:
            return
        name = next(name for name in StepPlan._fields if getattr(plan, name) != getattr(other, name))
        there, here = _brief(getattr(other, name)), _brief(getattr(plan, name))
        raise self._impure(view, f"{whose} plans {name} = {there}, where it planned {here}")

    def _impure(self, view: View, what: str) -> ImpureError:
        return ImpureError(Breach(f"plan {self.asked} of the run: {what}", time_s=view.now_s))


def _state(policy: object) -> dict[str, str]:
    """Return a policy's fields and attributes, which planning must leave as they are, as text."""
    names = [each.name for each in fields(policy)] if is_dataclass(policy) and not isinstance(policy, type) else []
    names += [name for name in getattr(policy, "__dict__", ()) if name not in names]
    return {name: repr(getattr(policy, name)) for name in names}


def _change(name: str, was: Any, now: Any) -> str:
    """The change of a member of the view: of its requests, the first that changed."""
    if isinstance(was, list) and [request["row"] for request in was] == [request["row"] for request in now]:
        for one, other in zip(was, now, strict=True):
            for key in one:
                if one[key] != other[key]:
                    return f"{key} of request {one['request_id']} was {_brief(one[key])}, is {_brief(other[key])}"
    return f"{name} was {_brief(was)}, is {_brief(now)}"


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


# Repetition: a run repeated, and a run with one event a step, give the same records.


def determinism(experiment: Experiment, run: Run) -> Breach | None:
    """Run twice in one process, the policy's file loaded once: equal decisions, equal records, to the last bit."""
    policy = experiment.new_policy()
    once, again = (
        experiment.run(log_decisions=True, make_policy=lambda: deepcopy(policy), fast_forward=False) for _ in range(2)
    )
    return same(once, again, (" at first", " when run again"))


def fast_forward(experiment: Experiment, run: Run) -> Breach | None:
    """Jumping from change to change gives the very numbers that one event a step gives."""
    return same(run, experiment.run(log_decisions=True), (" step by step", " with fast-forward"))


def same(one: Run, two: Run, told: tuple[str, str]) -> Breach | None:
    """The first difference of two runs, to the bit."""
    found = first_difference(one.decisions or [], two.decisions or [], told)
    if found is None and (columns := differences(one.records, two.records)):
        found = Breach(f"equal decisions, other records: {columns[0]}")
    return found
