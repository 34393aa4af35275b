"""A plan's answer about a candidate, and its JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scenarios.plan.bottleneck import Shares
from scenarios.plan.bounds import Bounds
from scenarios.plan.candidate import Candidate
from scenarios.plan.deploy import deploy
from scenarios.plan.goal import Goal
from scenarios.plan.trial import Trial

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """A candidate with its largest rate.

    `bounds` are in requests per second of all `replicas` together; None where no rate holds, or none was looked for.
    `shown` is the run that costs and causes are taken from: at the largest rate or, of a load that was asked for, at
    that load. `load` is what `headroom` is held against. `slower` and `faster` are the shares by which the rate moves
    where every step takes 5 % more or less. `prediction` is the entry of summary.json of the run that is shown, at the
    prices as they are, in a plan with a confidence. `note` says what could not be settled or why there is no answer;
    `load_words`, how a trace comes to the rate of `shown`. No scheduler serves more than `rate_at_best` for ever.
    """

    candidate: Candidate
    feasible: bool
    replicas: int
    load: float
    bounds: Bounds | None = None
    shown: Trial | None = field(default=None, repr=False)
    trials: tuple[Trial, ...] = field(default=(), repr=False)
    binding: Goal | None = None
    shares: Shares = field(default_factory=lambda: Shares({}))
    slower: float | None = None
    faster: float | None = None
    advice: str = ""
    note: str = ""
    load_words: str = ""
    excess: float = math.inf
    rate_at_best: float | None = None
    equal_to_best: bool = False
    prediction: Mapping[str, Any] | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.candidate.gpus(self.replicas)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of these GPUs; None where it is not known."""
        return self.candidate.usd_per_hour(self.replicas)

    @property
    def usd_per_million(self) -> float | None:
        """USD for a million output tokens in the run that is shown, as in summary.json."""
        return None if self.shown is None else self.shown.usd_per_million

    @property
    def headroom(self) -> float | None:
        """The share by which the load may still grow before a goal fails; negative if the load is too much."""
        return None if self.bounds is None else self.bounds.value / self.load - 1

    @property
    def deploy(self) -> str:
        """The command of a server."""
        return deploy(self.candidate.scenario, self.replicas)

    def entry(self) -> dict[str, Any]:
        """The candidate in `--json`."""
        rate = {name: _short(getattr(self.bounds, name, None)) for name in ("value", "low", "high")}
        return {
            "settings": self.candidate.named_settings(),
            "feasible": self.feasible,
            "rate": rate,
            "rate_at_best": _short(self.rate_at_best),
            "replicas": self.replicas,
            "gpus": self.gpus,
            "usd_per_hour": _short(self.usd_per_hour),
            "usd_per_million_output_tokens": _short(self.usd_per_million),
            **({} if self.shown is None else {name: _short(value) for name, value in self.shown.energy.items()}),
            "binding_slo": None if self.binding is None else self.binding.text,
            "bottleneck": self.shares.bottleneck,
            "headroom": _short(self.headroom),
            "advice": " ".join(part for part in (self.note, self.advice) if part),
            "equal_to_best": self.equal_to_best,
            "deploy": self.deploy,
            **({} if self.prediction is None else {"prediction": self.prediction}),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The answers, best first; `notes` say what a reader must know of all of them."""

    find: str
    name: str
    goals: tuple[Goal, ...]
    load: float
    answers: tuple[Answer, ...]
    runs: int
    cpu_s: float
    notes: tuple[str, ...] = ()
    traffic: str = ""

    def to_json(self) -> dict[str, Any]:
        """The plan as `--json` prints it."""
        return {
            "find": self.find,
            "slo": [goal.text for goal in self.goals],
            "candidates": [answer.entry() for answer in self.answers],
            "runs": self.runs,
            "cpu_s": round(self.cpu_s, 2),
        }


def _short(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")
