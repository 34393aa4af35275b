"""Workloads drawn from arrival processes and length distributions: `generate(GeneratedWorkload, seed)`.

arrivals    arrival times; rate_clock: rates that change with time
lengths     token counts
classes     the classes merged into one Workload

What a scenario may say of them is in `scenarios.schema.workload` and `scenarios.schema.lengths`.
"""

from __future__ import annotations

from scenarios.generate.classes import generate
from scenarios.schema.workload import GeneratedWorkload

__all__ = ["GeneratedWorkload", "generate"]
