"""Errors of the user's own code, with its file and line."""

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from scenarios.assembly.fleet_parts import BuiltGroup
from scenarios.schema.cost.own import OwnCostConfig
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError, PolicyError, RouterError


class _NoRuleError(Exception):
    """Stands for rules that nobody breaks by an error of their own."""


def blamed(error: Exception, scenario: Scenario, fleet: Sequence[BuiltGroup]) -> InputError | None:
    """Return the error placed in the user's own file that it comes from: policy, cost model or router; else None."""
    for file, broken, hint in _users_code(scenario, fleet):
        if (found := _blame(error, file, broken, hint)) is not None:
            return found
    return None


def _users_code(scenario: Scenario, fleet: Sequence[BuiltGroup]) -> Iterator[tuple[Path, type[Exception], str]]:
    """Yield the files of the user's own policies, cost models and router, each with its error of a broken rule."""
    policies = dict.fromkeys(built.group.scenario.engine.policy_file for built in fleet)
    for policy in policies:
        if policy is not None:
            yield policy, PolicyError, "what a plan may say is written in simulator/plan.py"
    for cost in (built.group.scenario.cost for built in fleet):
        if isinstance(cost, OwnCostConfig):
            yield cost.file, _NoRuleError, ""  # OwnCost tells of broken rules itself, with the file
    if (router := scenario.routing.file) is not None:
        yield router, RouterError, "choose returns one of the replicas (see simulator/fleet/router.py)"


def _blame(error: Exception, file: Path, broken: type[Exception], hint: str) -> InputError | None:
    """Return the error placed in the user's file: the broken rule, or the line that raised."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, broken) and getattr(cause, "file", None) in (None, str(file)):
            message = cause.message if isinstance(cause, PolicyError) else str(cause)
            return InputError(message, file=str(file), hint=hint)
    for cause in reversed(causes):
        frames = [f for f in traceback.extract_tb(cause.__traceback__) if Path(f.filename) == file]
        if frames:
            return InputError(f"{type(cause).__name__}: {cause}", file=str(file), line=frames[-1].lineno)
    return None
