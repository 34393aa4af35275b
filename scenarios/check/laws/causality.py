"""Causality: nothing happens before its cause, in the records or in what a policy knows."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from scenarios.check.experiment import Breach, Experiment, asynchronous
from scenarios.check.run_differences import first_difference
from simulator.results.records import Status
from simulator.simulate import Run
from simulator.workload import Ints, Workload


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
