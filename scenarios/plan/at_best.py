"""How far a plan's rate is from the largest that any scheduler can serve."""

from dataclasses import replace

from scenarios.bound.bound import bound_rate
from scenarios.plan.answer import Answer
from scenarios.plan.trial import Laboratory


def with_rate_at_best(lab: Laboratory, answer: Answer) -> Answer:
    """Return the answer with `rate_at_best`, the mean over the seeds; without it where a seed has no proven bound."""
    if answer.bounds is None:
        return answer
    scenario = answer.candidate.with_replicas(answer.replicas)
    found = [bound_rate(scenario, lab.traffic.workload(lab.traffic.rate, seed)) for seed in lab.seeds]
    known = [bound.value for bound in found if bound is not None]
    if len(known) < len(found):
        return answer
    return replace(answer, rate_at_best=sum(known) / len(known))
