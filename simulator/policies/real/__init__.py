"""vLLM's own scheduler as the policy: that of a user's installation, asked for each step in a process of its own.

Its answer becomes a plan, which the engine checks and applies as any other. So what batchlab does not model yet runs
too: another version, a fork, a scheduler of one's own. It is slower, as every step is asked for, and none is jumped.
"""

import shutil
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import doc

from simulator.plan import StepPlan, View
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.real.asked import VLLM, Asked, no_program


@dataclass(frozen=True, slots=True, kw_only=True)
class Real(ChunkedPrefill):
    """The scheduler of `python`, with `ChunkedPrefill`'s parameters, which go to it under vLLM's names.

    A plan is not a function of the view alone: the scheduler keeps requests and blocks of its own, and a companion
    tells it of arrivals, ends and results. It is asked exactly once for each step, and no plan holds for another.
    `version` says whose host prices the steps, and in which order batchlab's prefix cache evicts.
    """

    python: Annotated[str, doc("the Python that has the engine: a path, or a program on the PATH")]
    scheduler_config: Annotated[
        dict[str, object] | None, doc("further settings of its SchedulerConfig, by their own names")
    ] = None
    companion: Asked = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ChunkedPrefill.__post_init__(self)
        if shutil.which(self.python) is None:
            raise ValueError(no_program(self.python))
        depth = 2 if self.async_scheduling else 1
        object.__setattr__(self, "companion", Asked(self.python, VLLM, depth))

    def plan(self, view: View) -> StepPlan:
        return self.companion.plan(view, self, self.scheduler_config)
