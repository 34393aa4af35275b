"""Workloads drawn from arrival processes and length distributions: `generate(GeneratedWorkload, seed)`.

What a scenario may say of them is in `scenarios.schema.workload`, `arrivals` and `lengths`; an arrival process says how
it is drawn in its own file there.
"""

from scenarios.generate.classes import generate
from scenarios.schema.workload import GeneratedWorkload

__all__ = ["GeneratedWorkload", "generate"]
