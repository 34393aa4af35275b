"""The cases whose truth is known: what the server measured, what we simulate, what others published."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scenarios.measured import read_measured
from scenarios.runs.runner import run
from scenarios.schema.loader import load, shared_folder
from scenarios.validate.compare import Validation, compare, measured_side, validate
from scenarios.validate.error_parts import Diagnosis, diagnose

GROUND = "measured/ground_truth/llmservingsim_vllm"
SILICON = "measured/ground_truth/aiconfigurator_silicon/silicon_vllm.csv"


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario with a server's log. `published` are the best simulator's own score and worst error, in per cent.

    `overrides` are what is set over the scenario (`cost.name=...`).
    """

    scenario: str
    title: str
    folder: str
    published: tuple[float, float]
    overrides: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The folder of the log."""
        return shared_folder() / GROUND / self.folder


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A case's comparison with the server: ours, and that of the published simulator's own output, scored alike."""

    case: Case
    ours: Validation
    diagnosis: Diagnosis | None
    peer: Validation
    notes: Sequence[str]


CASES = (
    Case(
        "measured-rtxpro6000-llama31-8b",
        "Llama-3.1-8B, one RTX PRO 6000",
        "rtxpro6000_llama31_8b_tp1",
        (2.35, 8.7),
    ),
    Case(
        "measured-rtxpro6000-qwen3-30b-a3b",
        "Qwen3-30B-A3B, two RTX PRO 6000, data and expert parallel",
        "rtxpro6000_qwen3_30b_a3b_dp2ep2",
        (6.3, 36.0),
    ),
)
"""What is published: LLMServingSim (casys-kaist/LLMServingSim at 5daddb2, bench/examples)."""

COMPOSED = (
    Case(
        "measured-rtxpro6000-llama31-8b",
        "Llama-3.1-8B, one RTX PRO 6000, composed of tables",
        "rtxpro6000_llama31_8b_tp1",
        (2.35, 8.7),
        ("cost.name=rtx-pro-6000-vllm-0.24",),
    ),
)
"""The same server priced by tables of its GPU, under a later vLLM, instead of its profile."""

BLIND = ("blind-rtx4090-llama31-8b", "blind-rtxpro6000-qwen3-32b-tp2")
"""Scenarios whose truth is kept apart: predictions, made with the profiles alone."""


def evaluate(case: Case) -> CaseResult:
    """Simulate a case and compare. Raises InputError where the log is not here."""
    log = read_measured(case.path / "vllm_requests.jsonl.gz")
    result = run(load(case.scenario, case.overrides))
    ours = validate(log, result.records)
    peer = measured_side(read_measured(case.path / "peer_llmservingsim_requests.csv.gz"))
    return CaseResult(case, ours, diagnose(ours), compare(measured_side(log), peer, "order"), result.notes)
