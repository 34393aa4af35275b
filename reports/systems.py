"""The page on which all policies stand side by side, written from the policies themselves.

`python -m reports.systems > docs/systems.md` writes it again.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.parameters import MISSING
from simulator.policies import built_in_policies, policy_class, policy_parameters, system_of

_QUESTIONS = {
    "batch": "the batch may change",
    "prompts": "prompts are computed",
    "grant": "memory granted to enter",
    "order": "order",
    "victim": "preempted when memory runs out",
    "preemption": "how",
    "padding": "padding",
}

_HEAD = """# Batching policies side by side

This page is written from the code (`python -m reports.systems > docs/systems.md`); a test keeps it true. Each policy
is one file in `simulator/policies/`, and `engine.policy` names it. The rules of each, with their sources, are in its
docstring.
"""

_CHECKED = """## Checked against the systems themselves

The system's own scheduler was given the same requests and the same step times, and its decisions were held against
the policy's, step by step. Where that scheduler cannot be run apart from its server, a reference stands in for it,
written anew from its sources; the table says so. A policy that is not listed was written from publications and sources
alone.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join([_HEAD, *_table(), "", _CHECKED, *_checks(), "", "## Parameters", "", *_parameters()]) + "\n"


def _table() -> Iterator[str]:
    yield "| policy | system | " + " | ".join(_QUESTIONS.values()) + " |"
    yield "| --- | --- |" + " --- |" * len(_QUESTIONS)
    for policy in built_in_policies():
        system = system_of(policy)
        if system is None:
            continue
        yield f"| `{policy}` | {system.name} | " + " | ".join(getattr(system, key) for key in _QUESTIONS) + " |"


def _checks() -> Iterator[str]:
    yield "| policy | against | on | not covered |"
    yield "| --- | --- | --- | --- |"
    for policy in built_in_policies():
        system = system_of(policy)
        if system is not None and (checked := system.checked) is not None:
            yield f"| `{policy}` | {checked.against} | {checked.on} | {checked.uncovered} |"


def _parameters() -> Iterator[str]:
    for policy in built_in_policies():
        given = ", ".join(
            f"`{name}: {_written(known.default)}`" for name, known in policy_parameters(policy_class(policy)).items()
        )
        yield f"- `{policy}`: {given}"


def _written(default: object) -> str:
    if default is None or default is MISSING:
        return "null"
    return str(default).lower() if isinstance(default, bool) else str(default)


if __name__ == "__main__":
    print(page(), end="")
