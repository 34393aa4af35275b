"""A policy through the laws: one random scenario after the other, the smallest that breaks a law, and its report."""

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scenarios.check.cases import MOST_TRIES, RandomCase, RandomRequest, as_yaml, random_case, shrink
from scenarios.check.law_trial import Breach, Law, LeakError, LivelockError, TooLongError, Trial, cpu_limit, make_trial
from scenarios.check.laws import (
    blocks,
    budgets,
    causality,
    conservation,
    determinism,
    fast_forward,
    future,
    oracle,
    order,
    purity,
    service,
    work,
)
from scenarios.runs.storage.run_folder import staging, unwritable
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError, PolicyError
from simulator.parameters import split_class
from simulator.policies import policy_class
from simulator.simulate import Run
from simulator.workload import Workload

LAWS: Mapping[str, tuple[str, Law | None]] = {
    "plans": ("every plan can be carried out, and is made without an error", None),
    "time": ("a plan is made in a second of CPU time", None),
    "livelock": ("plans lead to tokens", None),
    "budgets": ("a step has at most max_num_batched_tokens tokens and max_num_seqs requests", budgets),
    "service": ("every request that fits is served: none starves", service),
    "purity": ("the same view gives the same plan, and planning changes nothing", purity),
    "oracle": ("no decision depends on an answer's true length before it ends", oracle),
    "future": ("no decision depends on a request that has not arrived", future),
    "conservation": ("each request is in one place and ends once; tokens add up", conservation),
    "blocks": ("blocks are owned or free, never both, and none leaks", blocks),
    "causality": ("arrival <= scheduled < first token <= last token; the clock goes forward", causality),
    "determinism": ("run twice, the same to the last bit", determinism),
    "fast-forward": ("fast-forward gives the same as one event a step", fast_forward),
    "work": ("the engine does not rest while a request waits", work),
    "order": ("of equal requests the first to come is scheduled first", order),
}
"""Each law in words, and its check; None: broken by a run that ends in an error."""

OF_OTHER_REQUESTS = ("oracle", "future")
"""Laws that compare with a run of other requests: an error in that run is a breach of another law, by another case."""

FEW_TRIES = 8  # to shrink what each time takes its second

WARNINGS = ("work", "order")  # what a policy may do by design


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken law, and the smallest case found that breaks it, shrunk from random scenario `index`.

    Both are None where the scenario was given.
    """

    breach: Breach
    case: RandomCase | None = None
    index: int | None = None


@dataclass(slots=True)
class Report:
    """The result of a check: the number of scenarios each law was tried on, and the findings."""

    policy: str
    seed: int
    scenarios: int
    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LAWS, 0))
    broken: dict[str, Finding] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return whether no law is broken but those that only warn."""
        return all(law in WARNINGS for law in self.broken)


def check_policy(
    policy: str,
    *,
    seed: int = 0,
    scenarios: int = 300,
    fixed: Mapping[str, object] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Put the policy, a built-in's name or `path.py:Class`, through the laws on random scenarios.

    `fixed` are engine keys that stay as they are. A law that is broken is tried no further: its scenario is shrunk.
    A plan that takes for ever ends the check.
    Raises InputError where the policy cannot be loaded or refuses these keys.
    """
    given = dict(fixed or {})
    cls = policy_class(policy)
    report = Report(policy, seed, scenarios)
    try:
        _trial_of(policy, RandomCase((RandomRequest(0.0, 1, 1, 1),), 100, 16, given))  # refuses bad keys at once
    except InputError as error:
        hint = error.hint or "--set KEY=VALUE gives it a key of `engine:`"
        raise InputError(error.message, file=error.file, line=error.line, column=error.column, hint=hint) from None
    with cpu_limit():
        for index in range(scenarios):
            case = random_case(cls, seed, index, given)
            try:
                trial = _trial_of(policy, case)
            except InputError:  # parameters that do not go together: its own stay
                case = replace(case, parameters=given)
                trial = _trial_of(policy, case)
            for law, breach in broken_laws(trial, report.tried, skip=report.broken).items():
                report.broken[law] = _smallest(policy, case, law, breach, index, given)
            if progress is not None:
                progress(index + 1)
            if "time" in report.broken:  # the others would take their seconds too
                break
    return report


def check_scenario(scenario: Scenario, workload: Workload) -> Report:
    """Put the scenario's policy through the laws on this one scenario."""
    report = Report(scenario.engine.policy, scenario.seed, 1)
    trial = make_trial(scenario, workload)
    with cpu_limit():
        report.broken = {law: Finding(breach) for law, breach in broken_laws(trial, report.tried).items()}
    return report


def _smallest(
    policy: str, case: RandomCase, law: str, breach: Breach, index: int, fixed: Mapping[str, object]
) -> Finding:
    most_tries = FEW_TRIES if law == "time" else MOST_TRIES
    small = shrink(case, lambda simpler: _breach_of(policy, simpler, law) is not None, fixed, most_tries)
    return Finding(_breach_of(policy, small, law) or breach, small, index)


def broken_laws(trial: Trial, tried: dict[str, int], skip: Container[str] = ()) -> dict[str, Breach]:
    """The laws that a trial breaks, of those not in `skip`; `tried` counts those that were checked."""
    outcome = _base_run(trial)
    if isinstance(outcome, tuple):
        law, breach = outcome
        if law in skip:
            return {}
        tried[law] += 1
        return {law: breach}
    found: dict[str, Breach] = {}
    for law in LAWS:
        if law not in skip:
            tried[law] += 1
            try:
                broken = _checked(law, trial, outcome)
            except TooLongError as error:
                return {**found, "time": _told(error, trial)}
            if broken is not None:
                found[law] = broken
    return found


def _base_run(trial: Trial) -> Run | tuple[str, Breach]:
    """The run that the laws look at; or the law that its end in an error breaks, and how."""
    try:
        return trial.base_run()
    except (Exception, SystemExit, TooLongError) as error:
        return _law_of(error), _told(error, trial)


def _checked(law: str, trial: Trial, run: Run) -> Breach | None:
    """The breach of the law in a trial whose base run went well, if any; an error on the way is a breach too.

    Raises TooLongError for a plan that takes its time only there.
    """
    check = LAWS[law][1]
    try:
        return None if check is None else check(trial, run)
    except (Exception, SystemExit) as error:
        return None if law in OF_OTHER_REQUESTS else _told(error, trial)


def _law_of(error: BaseException) -> str:
    if isinstance(error, TooLongError):
        return "time"
    if isinstance(error, LivelockError):
        return "livelock"
    if isinstance(error, LeakError):
        return "blocks"
    text = str(error)
    if isinstance(error, PolicyError) and ("max_num_seqs" in text or "max_num_batched_tokens" in text):
        return "budgets"
    return "plans"


def _told(error: BaseException, trial: Trial) -> Breach:
    """An error as a breach: a rule that the engine enforces, or an exception with the policy's file and line."""
    last = trial.asked[-1] if trial.asked else None
    what = (
        _placed(error, trial.policy) if not isinstance(error, (PolicyError, LivelockError, LeakError)) else str(error)
    )
    if last is None:
        return Breach(what)
    return Breach(f"plan {last.plans} of the run: {what}", time_s=last.now_s)


def _placed(error: BaseException, policy: object) -> str:
    """Write an error with its type and, if the policy's file is on its way, the line there: `at my_policy.py:12`."""
    cause = error
    while cause.__cause__ is not None:  # SimPy raises a copy
        cause = cause.__cause__
    text = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
    file = str(getattr(sys.modules.get(type(policy).__module__), "__file__", None))
    lines = [frame.lineno for frame in traceback.extract_tb(cause.__traceback__) if frame.filename == file]
    return f"{text} at {Path(file).name}:{lines[-1]}" if lines else text


def _breach_of(policy: str, case: RandomCase, law: str) -> Breach | None:
    """The breach of a law in a case; None where there is none, or another law breaks first."""
    try:
        trial = _trial_of(policy, case)
    except InputError:
        return None
    outcome = _base_run(trial)
    if isinstance(outcome, tuple):
        return outcome[1] if outcome[0] == law else None
    try:
        return _checked(law, trial, outcome)
    except TooLongError:
        return None


def _trial_of(policy: str, case: RandomCase) -> Trial:
    scenario = load(case.scenario("check", policy, "requests.csv"), check_files=False)
    return make_trial(scenario, case.workload())


# The text of a check, and the scenarios that it writes.

FILES = tuple(f"{law}.{ending}" for law in LAWS for ending in ("yaml", "csv"))
"""The files that `write` may write."""


def table(report: Report) -> str:
    """Write a row for each law, without a final newline."""
    width = max(map(len, LAWS))
    lines = [f"{'law':<{width}}  tried  result   meaning"]
    for law, (words, _) in LAWS.items():
        lines.append(f"{law:<{width}}  {report.tried[law]:>5}  {_result(report, law):<7}  {words}")
    return "\n".join(lines)


def story(report: Report, law: str, place: str, folder: Path) -> str:
    """Describe a broken law: the breach and, of a counterexample that was written, the commands that show it again."""
    found = report.broken[law]
    lines = [f"{law}: {_result(report, law)}. {LAWS[law][0]}", f"  {found.breach}"]
    if found.case is not None:
        count = len(found.case.requests)
        path = shlex.quote(str(folder / f"{law}.yaml"))
        lines += [
            f"  smallest counterexample: {count} {'request' if count == 1 else 'requests'}, "
            f"shrunk from scenario {found.index} of seed {report.seed}",
            f"  replay:  batchlab check policy {shlex.quote(place)} --scenario {path}",
            f"  look at: batchlab run {path} --log-decisions",
        ]
    return "\n".join(lines)


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""
    laws = {}
    for law, (words, _) in LAWS.items():
        found = report.broken.get(law)
        laws[law] = {
            "law": words,
            "tried": report.tried[law],
            "result": _result(report, law),
            "counterexample": None if found is None else _counterexample(law, found),
        }
    about = {"policy": report.policy, "seed": report.seed, "scenarios": report.scenarios, "holds": report.holds}
    return about | {"laws": laws}


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise InputError for a folder that holds an earlier check's counterexamples, unless they may be replaced."""
    there = [name for name in FILES if (folder / name).exists()]
    if there and not overwrite:
        hint = "replace it with --overwrite, or choose another folder with --out"
        raise InputError(f"{folder / there[0]} exists already", hint=hint)


def write(folder: Path, report: Report) -> None:
    """Write each counterexample's scenario and trace. Raises InputError where the disk does not take them."""
    with staging(folder, replace=FILES) as place:
        for law, found in report.broken.items():
            if found.case is None:
                continue
            scenario = found.case.scenario(f"breaks-{law}", _relative(report.policy, folder), f"{law}.csv")
            head = f"# {LAWS[law][0]}\n# Broken: {found.breach}\n".replace("\r", " ")
            try:
                (place / f"{law}.yaml").write_text(head + as_yaml(scenario), encoding="utf-8", newline="\n")
                (place / f"{law}.csv").write_text(found.case.trace(), encoding="utf-8", newline="\n")
            except OSError as error:
                raise unwritable(folder, error) from error


def _relative(policy: str, folder: Path) -> str:
    """Return the policy as a scenario in `folder` names it."""
    path, cls = split_class(policy)
    return f"{Path(os.path.relpath(path, folder)).as_posix()}:{cls}" if path else policy


def _result(report: Report, law: str) -> str:
    if law not in report.broken:
        return "holds" if report.tried[law] else "untried"
    return "warning" if law in WARNINGS else "BROKEN"


def _counterexample(law: str, found: Finding) -> dict[str, Any]:
    breach = asdict(found.breach)
    if found.case is None:
        return breach
    return {**breach, "requests": len(found.case.requests), "index": found.index, "file": f"{law}.yaml"}
