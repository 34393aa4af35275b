"""Workloads drawn from arrival processes and length distributions: `generate(GeneratedWorkload, seed)`.

config         what a scenario may say: processes, classes, rates and shares
config_lengths the same for token counts
streams        random numbers, one stream per class and purpose
arrivals       arrival times; rate_clock: rates that change with time
lengths        token counts; normal: the normal distribution without scipy
classes        the classes merged into one Workload
"""

from __future__ import annotations

from scenarios.generate.classes import generate
from scenarios.generate.config import GeneratedWorkload

__all__ = ["GeneratedWorkload", "generate"]
