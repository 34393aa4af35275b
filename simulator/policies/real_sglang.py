"""SGLang's own scheduler as the policy: that of a user's installation, asked for each step in a process of its own."""

import shutil
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import doc

from simulator.plan import StepPlan, View
from simulator.policies.real.asked import SGLANG, AskedSglang, no_program
from simulator.policies.sglang import Sglang


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSglang(Sglang):
    """The scheduler of `python`, with `Sglang`'s parameters, which go to it under SGLang's names.

    As with the policy `real`, a companion keeps the scheduler informed, and it is asked exactly once for each step.
    """

    python: Annotated[str, doc("the Python that has the engine: a path, or a program on the PATH")]
    server_args: Annotated[dict[str, object] | None, doc("further settings of its ServerArgs, by their own names")] = (
        None
    )
    verifies_drafts: ClassVar[bool] = False  # none are handed to the scheduler
    companion: AskedSglang = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        Sglang.__post_init__(self)
        if shutil.which(self.python) is None:
            raise ValueError(no_program(self.python))
        depth = 2 if self.async_scheduling else 1
        object.__setattr__(self, "companion", AskedSglang(self.python, SGLANG, depth))

    def plan(self, view: View) -> StepPlan:
        return self.companion.plan(view, self, self.server_args)
