"""A scenario on which laws are checked: built once, run as often as a law asks."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace

from scenarios.assembly.fleet_parts import build_router
from scenarios.assembly.replica_parts import ReplicaParts, build
from scenarios.check.checking_blocks import CheckingBlocks
from scenarios.check.watched import Watched, watched
from scenarios.schema.scenario import Scenario
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.plan import Policy
from simulator.policies import load_policy, policy_parameters
from simulator.simulate import Run, simulate
from simulator.workload import Workload

BARREN_PLANS = 1000  # so many plans in a row, and two for each token of the workload, may give no token


@dataclass(frozen=True, slots=True)
class Trial:
    """An experiment (`scenarios.check.experiment`) of a scenario as a user has it.

    `asked` collects the watched policies of its runs, the last one last.
    """

    scenario: Scenario
    workload: Workload
    policy: Policy
    parts: ReplicaParts
    asked: list[Watched] = field(default_factory=list)

    def new_policy(self) -> Policy:
        values = {name: getattr(self.policy, name) for name in policy_parameters(type(self.policy))}
        return load_policy(self.scenario.engine.policy, deepcopy(values))

    def on(self, workload: Workload) -> Trial:
        return replace(self, workload=workload)

    def run(
        self,
        *,
        fast_forward: bool = True,
        log_decisions: bool = False,
        make_blocks: Callable[[int, int], KVBlocks] = BlockLedger,
        make_policy: Callable[[], Policy] | None = None,
    ) -> Run:
        if make_policy is None:
            policy = self.new_policy()
            make_policy = lambda: deepcopy(policy)  # noqa: E731 - as a run of the user's: a copy for each replica
        most_barren = BARREN_PLANS + 2 * int(self.workload.input_tokens.sum() + self.workload.max_tokens.sum())

        def make_watched() -> Policy:
            self.asked.append(watched(make_policy(), most_barren))
            return self.asked[-1]

        parts = self.parts
        if parts.make_blocks is not BlockLedger:  # a prefix cache is an account of its own
            make_blocks = parts.make_blocks
        return simulate(
            self.workload,
            make_policy=make_watched,
            kv=parts.kv,
            cost=parts.cost,
            swap_s_per_block=parts.swap_s_per_block,
            swap_overlap=parts.swap_overlap,
            make_blocks=make_blocks,
            replicas=self.scenario.replicas,
            router=build_router(self.scenario),
            fast_forward=fast_forward,
            log_decisions=log_decisions,
        )

    def base_run(self) -> Run:
        """Run with one event a step, a log of decisions and checked blocks. Raises LeakError for a lost block."""
        return self.run(log_decisions=True, make_blocks=CheckingBlocks, fast_forward=False)


def make_trial(scenario: Scenario, workload: Workload) -> Trial:
    """Build the trial of a scenario. Raises InputError where the scenario's parts do not fit together."""
    parts = build(scenario)
    return Trial(scenario, workload, parts.make_policy(), parts)
