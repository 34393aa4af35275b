"""A policy says itself what it is, and does what it says; no other module of the product names a policy."""

import ast
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from simulator.plan import Policy
from simulator.policies import COMPARED, DEFAULT_POLICY, PLAIN_POLICY, built_in_policies
from simulator.policy_traits import ABILITIES, Traits
from simulator.timing.formula_cost import Linear
from tests.laws.scenarios import POLICIES, RESERVING, Memory, Scenario, make_policy, make_workload, takes

ROOT = Path(__file__).resolve().parents[2]
OWNER = "simulator/policies/__init__.py"
OTHER_NAMES = {
    "calibration/cold.py": {"vllm"},  # whose kernels
    "calibration/sources.py": {"sglang", "vllm"},  # folders of measurements
    "calibration/tabulate.py": {"vllm"},
    "gpu_backend/kernel_choice.py": {"vllm"},  # an attention kernel
    "reports/exports/formats/vllm.py": {"vllm"},  # a format
    "scenarios/cli/plan.py": {"vllm"},  # the program whose benchmark is run
    "scenarios/cli/calibrate.py": {"sglang", "vllm"},  # the engine that is asked to measure
    "scenarios/cli/export.py": {"vllm"},
    "scenarios/plan/experiment.py": {"vllm"},
    "scenarios/profiles.py": {"vllm"},
    "scenarios/schema/client.py": {"vllm"},  # a client
    "scenarios/servers/server.py": {"vllm"},  # whose kernels
    "scenarios/servers/sglang.py": {"sglang"},
    "simulator/policies/real/asked.py": {"sglang", "vllm"},  # packages in a user's Python
    "simulator/policies/real/programs/sglang_engine.py": {"sglang"},
    "simulator/policies/real/programs/vllm_engine.py": {"vllm"},
    "simulator/sampling.py": {"vllm"},  # what a flag says
}
"""Modules in which a word that is also a policy's name means something else."""


def product() -> Iterator[Path]:
    """The modules of the wheel."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    for room in packages["include"]:
        for path in sorted((ROOT / room.removesuffix("*")).rglob("*.py")):
            package = ".".join(path.parent.relative_to(ROOT).parts)
            if not any(fnmatchcase(package, pattern) for pattern in packages.get("exclude", ())):
                yield path


def test_no_module_names_a_policy_but_the_one_that_declares_the_default() -> None:
    policies = set(built_in_policies())
    found: dict[str, set[str]] = {}
    for path in product():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        constants = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        place = path.relative_to(ROOT).as_posix()
        if names := constants & policies - OTHER_NAMES.get(place, set()):
            found[place] = names
    assert found == {OWNER: {*COMPARED}}
    assert {DEFAULT_POLICY, PLAIN_POLICY} < {*COMPARED}


def traits(policy: Policy) -> Traits:
    return Traits.of(policy)


def steps(policy: Policy, priority: list[int]) -> list[dict[str, Any]]:
    """What each step computes: the first request decodes when the second and the third come, with ample memory."""
    workload = make_workload([0.0, 5.5, 5.5], [(8, 20), (40, 9), (64, 9)], priority=priority)
    run = Scenario(workload, policy, Memory(200, 8), Linear(1.0)).run(log_decisions=True)
    assert run.decisions is not None
    return [dict(decision) for decision in run.decisions]


CASES: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in POLICIES] + [
    (name, {"enable_chunked_prefill": chunks})
    for name in POLICIES
    for chunks in (False, True)
    if takes(name, "enable_chunked_prefill") and " " not in name
]
CASES += [("sglang", {"enable_mixed_chunk": True}), ("sglang", {"chunked_prefill_size": -1})]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_policy_computes_prompts_as_it_says(name: str, options: dict[str, Any]) -> None:
    policy = make_policy(name, 4, 64, **options)
    found = steps(policy, [0, 0, 0])
    # Refused where prompt and answer must fit into a step together.
    third = next((step["scheduled"]["2"] for step in found if "2" in step["scheduled"]), 64)
    assert traits(policy).whole_prompts == (third >= 64)
    second = next(step for step in found if "1" in step["scheduled"])
    assert traits(policy).pauses_decodes == ("0" in second["running"] and "0" not in second["scheduled"])


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_reserves_as_it_says(name: str) -> None:
    assert traits(make_policy(name, 4, 64)).reserves == (name in RESERVING)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_a_policy_displaces_as_it_says(name: str, order: str) -> None:
    if order == "priority" and not takes(name, "order"):
        return
    policy = make_policy(name, 1, 64, **({"order": order} if takes(name, "order") else {}))
    found = steps(policy, [1, 0, 0])
    ends = next(place for place, step in enumerate(found) if "0" in step["finished"])
    displaced = any("1" in step["scheduled"] for step in found[:ends])
    assert traits(policy).displaces == displaced


@pytest.mark.parametrize("name", POLICIES)
def test_what_a_policy_is_able_to_is_known_of_its_class(name: str) -> None:
    policy = make_policy(name, 4, 64)
    of_class = Traits.of(type(policy))
    for ability in ABILITIES:
        assert getattr(Traits(), ability) is False
        assert getattr(of_class, ability) is getattr(traits(policy), ability) is getattr(policy, ability, False)
