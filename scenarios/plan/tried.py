"""The runs that a plan has made, on disk until it is written: a plan that was stopped goes on where it was.

A run is a file, named by the content of its scenario, the files that it reads, the code, and what is asked of it. It is
moved to its name when it is complete, so whatever has its name is whole, however the process ended.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.plan.goal import Goal
from scenarios.plan.trial import Trial
from scenarios.runs.storage.staging import PARTIAL, unwritable
from scenarios.schema.scenario import Scenario
from scenarios.studies.study_run import address

_FOLDER = f"{PARTIAL}plan"
_PLAIN = (
    "rate",
    "replicas",
    "seed",
    "holds",
    "excess",
    "values",
    "usd_per_million",
    "rejected",
    "why_rejected",
    "energy",
)


class Tried:
    """Keeps the trials of a plan in a hidden folder of `target`, where its files will be."""

    def __init__(self, target: Path) -> None:
        self._target, self._folder = target, target / _FOLDER
        self._made = not target.exists()
        self.found = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(target, error) from error

    def key(self, scenario: Scenario, goals: Sequence[Goal], *how: object) -> str:
        """Return the name of a run: of this scenario, its traffic included, for these goals, in such a way."""
        said = json.dumps([address(scenario), [goal.text for goal in goals], how])
        return hashlib.sha256(said.encode()).hexdigest()[:40]

    def get(self, key: str, goals: Sequence[Goal]) -> Trial | None:
        """Return the trial of a run without its records; None where it was not made, or cannot be read."""
        with suppress(OSError, ValueError, KeyError), np.load(self._folder / f"{key}.npz") as file:
            plain: dict[str, Any] = json.loads(str(file["plain"]))
            tails = tuple(file[f"tail{place}"] for place in range(plain.pop("tails")))
            worst = goals[plain.pop("worst")]
            plain["values"] = tuple(plain["values"])
            self.found += 1
            return Trial(**plain, worst=worst, goals=tuple(goals), tails=tails)
        return None

    def put(self, key: str, trial: Trial) -> None:
        """Keep a trial. Raises InputError where the disk does not take it."""
        plain = {name: getattr(trial, name) for name in _PLAIN}
        plain |= {"worst": trial.goals.index(trial.worst), "tails": len(trial.tails)}
        text = json.dumps(plain, default=lambda value: value.item())  # a number of numpy's
        draft = self._folder / f".{key}-{os.getpid()}.npz"
        try:
            tails: dict[str, Any] = {f"tail{place}": tail for place, tail in enumerate(trial.tails)}
            np.savez(draft, plain=text, **tails)
            draft.replace(self._folder / f"{key}.npz")
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            raise unwritable(self._target, error) from error

    def forget(self) -> None:
        """Remove all trials, when the plan is written or nothing was tried; and the target, if it was made for them."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # the plan is in it
            if self._made:
                self._target.rmdir()

    @property
    def is_empty(self) -> bool:
        """True if no trial is kept."""
        return not any(self._folder.glob("[!.]*.npz"))
