"""Repetition: a run repeated, and a run with one event a step, give the same records."""

from copy import deepcopy

from scenarios.check.experiment import Breach, Experiment
from scenarios.check.run_differences import differences, first_difference
from simulator.simulate import Run


def determinism(experiment: Experiment, run: Run) -> Breach | None:
    """Run twice in one process, the policy's file loaded once: equal decisions, equal records, to the last bit."""
    policy = experiment.new_policy()
    once, again = (
        experiment.run(log_decisions=True, make_policy=lambda: deepcopy(policy), fast_forward=False) for _ in range(2)
    )
    return same(once, again, (" at first", " when run again"))


def fast_forward(experiment: Experiment, run: Run) -> Breach | None:
    """Jumping from change to change gives the very numbers that one event a step gives."""
    return same(run, experiment.run(log_decisions=True), (" step by step", " with fast-forward"))


def same(one: Run, two: Run, told: tuple[str, str]) -> Breach | None:
    """The first difference of two runs, to the bit."""
    found = first_difference(one.decisions or [], two.decisions or [], told)
    if found is None and (columns := differences(one.records, two.records)):
        found = Breach(f"equal decisions, other records: {columns[0]}")
    return found
