"""The command that starts a server with a candidate's settings, as the server of its policy takes it."""

from __future__ import annotations

from scenarios.assembly.engine_policy import build_policy, policy_label
from scenarios.schema.scenario import Scenario
from simulator.hardware.models import HUGGING_FACE
from simulator.policies import server_of
from simulator.servers import Deployment

UNKNOWN_MODEL = "MODEL"
"""The placeholder for the Hugging Face name of a model that is not a built-in one."""


def deploy(scenario: Scenario, replicas: int = 1) -> str:
    """Return the command of one replica with a remark on what it cannot say; a remark alone where no server does it."""
    policy = scenario.engine.policy
    if scenario.fleet is not None:
        return "# each group has a command of its own: plan the groups one by one"
    write = server_of(policy).command
    if write is None:
        return f"# {policy_label(policy)} is not a server's policy: there is no command for it"
    hardware, engine = scenario.hardware, scenario.engine
    at = Deployment(
        model=HUGGING_FACE.get(scenario.model, UNKNOWN_MODEL) if isinstance(scenario.model, str) else UNKNOWN_MODEL,
        tensor_parallel=hardware.tensor_parallel,
        gpu_memory_utilization=hardware.gpu_memory_utilization,
        swap_space_gib=hardware.swap_space_gib,
        block_size=engine.block_size,
        enable_prefix_caching=engine.enable_prefix_caching,
        enable_expert_parallel=hardware.enable_expert_parallel,
    )
    command, remarks = write(build_policy(scenario), at)
    if at.model == UNKNOWN_MODEL:
        name = scenario.resolve_model().name
        remarks = [f"{UNKNOWN_MODEL} is the Hugging Face name or the path of {name}", *remarks]
    if replicas > 1:
        remarks = [f"on each of {replicas:,} replicas", *remarks]
    return f"{command}  # {'; '.join(remarks)}" if remarks else command
