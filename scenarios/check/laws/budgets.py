"""The budgets of a step: slots and tokens."""

from __future__ import annotations

import numpy as np

from scenarios.check.experiment import Breach, Experiment
from simulator.plan import OptionalMembers
from simulator.results.records import Ints
from simulator.simulate import Run


def budgets(experiment: Experiment, run: Run) -> Breach | None:
    """A step computes at most max_num_batched_tokens tokens, for at most max_num_seqs requests.

    Padding and the tokens of held requests count like any other; a paused request needs no slot. A policy without
    `max_num_batched_tokens` has no budget of tokens.
    """
    rows = run.records.rows
    slots = experiment.policy.max_num_seqs
    limits: list[tuple[str, str, Ints, str, float]] = [("runs", "requests", rows.running, "max_num_seqs", slots)]
    budget = OptionalMembers.of(experiment.policy).max_num_batched_tokens
    limits.append(("computes", "tokens", rows.tokens, "max_num_batched_tokens", budget))
    for verb, noun, column, name, limit in limits:
        over = np.flatnonzero(column > limit)
        if len(over):
            row = over[0]
            what = f"{verb} {column[row]} {noun}; {name} is {limit}"
            return Breach(what, int(rows.first_step[row]), float(rows.start_s[row]))
    for step in run.decisions or []:
        if len(step["scheduled"]) > slots:
            what = f"schedules {len(step['scheduled'])} requests; max_num_seqs is {slots}"
            return Breach(what, step["step"], step["t_start_s"])
    return None
