"""A fact about a policy stands in the policy's own file: no other module of the product names a policy."""

from __future__ import annotations

import ast
from pathlib import Path

from simulator.policies import DEFAULT_POLICY, PLAIN_POLICY, built_in_policies

ROOT = Path(__file__).resolve().parents[2]
OWNER = "simulator/policies/__init__.py"
OTHER_NAMES = {
    "calibration/latent_norms.py": {"vllm"},  # a folder of measurements
    "calibration/sources/aiconfigurator.py": {"vllm"},
    "calibration/tabulate_latent.py": {"vllm"},
    "gpu_backend/attention/backends.py": {"vllm"},  # an attention kernel
    "reports/exports/formats/vllm.py": {"vllm"},  # a format
    "scenarios/cli/export.py": {"vllm"},
}
"""Modules in which a word that is also a policy's name means something else."""
TOOLS = (
    "docs/", "tests/", "gpu_backend/campaign/", "gpu_backend/device_checks", "gpu_backend/kernel_bench",
    "scenarios/accuracy/", "scenarios/claims/", "scenarios/study_pages/", "scenarios/cli/accuracy.py",
    "scenarios/cli/gallery.py", "scenarios/cli/run_folder.py",
)  # fmt: skip
"""Writers of the project's own pages and its device checks: they name what they show."""


def named() -> dict[str, set[str]]:
    """The names of policies in each module of the product, as whole string constants."""
    policies = set(built_in_policies())
    found: dict[str, set[str]] = {}
    for room in ("simulator", "scenarios", "calibration", "gpu_backend", "reports"):
        for path in sorted((ROOT / room).rglob("*.py")):
            place = path.relative_to(ROOT).as_posix()
            if place.startswith(TOOLS):
                continue
            constants = {
                node.value
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            }
            if names := constants & policies:
                found[place] = names
    return found


def test_no_module_names_a_policy_but_the_one_that_declares_the_default() -> None:
    found = named()
    assert found.pop(OWNER) == {DEFAULT_POLICY, PLAIN_POLICY}
    wrong = {place: names - OTHER_NAMES.get(place, set()) for place, names in found.items()}
    assert {place: names for place, names in wrong.items() if names} == {}
