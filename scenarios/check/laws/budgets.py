"""The budgets of a step: slots and tokens."""

import numpy as np

from scenarios.check.experiment import Breach, Experiment
from simulator.policy_traits import OptionalMembers
from simulator.simulate import Run


def budgets(experiment: Experiment, run: Run) -> Breach | None:
    """A step computes at most max_num_batched_tokens tokens, for at most max_num_seqs requests.

    Padding and the tokens of held requests count like any other; a paused request needs no slot. A policy without
    `max_num_batched_tokens` has no budget of tokens.
    """
    rows = run.records.rows
    slots, budget = experiment.policy.max_num_seqs, OptionalMembers.of(experiment.policy).max_num_batched_tokens
    for verb, noun, column, name, limit in (
        ("runs", "requests", rows.running, "max_num_seqs", slots),
        ("computes", "tokens", rows.tokens, "max_num_batched_tokens", budget),
    ):
        over = np.flatnonzero(column > limit)
        if len(over):
            row = over[0]
            what = f"{verb} {column[row]} {noun}; {name} is {limit}"
            return Breach(what, int(rows.first_step[row]), float(rows.start_s[row]))
    for step in run.decisions or []:
        if len(step["scheduled"]) > slots:
            what = f"schedules {len(step['scheduled'])} requests; max_num_seqs is {slots}"
            return Breach.at(step, what)
    return None
