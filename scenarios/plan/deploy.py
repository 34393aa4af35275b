"""The command that starts a server with a candidate's settings, as the server of its policy takes it."""

from scenarios.assembly.engine_policy import build_policy, policy_label
from scenarios.assembly.replica_parts import STATIC, memory_settings
from scenarios.schema.engine import UNSAID
from scenarios.schema.scenario import Scenario
from scenarios.servers import server_of
from scenarios.servers.flags import OPTIONS_FILE, flow, line, options_of, unsaid, variables_of, words_of
from scenarios.servers.manifests import Deployed
from simulator.errors import InputError
from simulator.hardware.models import HUGGING_FACE
from simulator.plan import Policy

UNKNOWN_MODEL = "MODEL"
"""The placeholder for the Hugging Face name of a model that is not a built-in one."""


def deploy(scenario: Scenario, replicas: int | None = None) -> str:
    """Return the command of one server with a remark on what it cannot say; a remark alone where no server does it."""
    found = deployed(scenario, replicas)
    if isinstance(found, str):
        return f"# {found}"
    options = [f"{OPTIONS_FILE}: {flow(found.options)}"] if found.options else []
    each = [f"on each of {found.replicas:,} replicas"] if found.replicas > 1 else []
    remarks = [*each, *found.remarks, *options]
    command = " ".join([*(f"{name}={value}" for name, value in found.variables.items()), line(found.words)])
    return f"{command}  # {'; '.join(remarks)}" if remarks else command


def deployed(scenario: Scenario, replicas: int | None = None) -> Deployed | str:
    """Return the start of a server with so many replicas, or the reason why there is none.

    Without a number it is that of one replica. Replicas that share experts, or have the balancer of the server itself,
    are data-parallel ranks of one server, by default as many as the scenario has.
    """
    policy = scenario.engine.policy
    if scenario.fleet is not None:
        return "each group has a command of its own: plan the groups one by one"
    launch = server_of(policy).launch
    if launch is None:
        return f"{policy_label(policy)} is not a server's policy: there is no command for it"
    built = build_policy(scenario)
    values: dict[str, object] = {f"engine.{key}": value for key, value in scenario.engine.resolved().items()}
    values |= {f"hardware.{key}": value for key, value in scenario.hardware.model_dump().items()}
    if any(flag.key == STATIC for flag in launch.flags) and values[STATIC] is None:
        values[STATIC] = _static_share(scenario, built)
    values["sampling"] = None if scenario.sampling is None else scenario.sampling.model_dump(exclude_none=True) or None
    count = scenario.replicas if replicas is None else replicas
    shares = scenario.hardware.enable_expert_parallel and count > 1
    is_own = scenario.routing.kind == launch.balancer
    has_ranks = any(flag.key == "replicas" for flag in launch.flags)
    ranks = count if has_ranks and (shares or is_own) else 1
    values["replicas"] = ranks if ranks > 1 else None
    values |= launch.written(built, values) if launch.written is not None else {}
    model = HUGGING_FACE.get(scenario.model, UNKNOWN_MODEL) if isinstance(scenario.model, str) else UNKNOWN_MODEL
    remarks = [*(launch.remarks(built, values) if launch.remarks is not None else ())]
    if ranks > 1 and not is_own:
        remarks.append(f"its own balancer instead of {scenario.routing.kind}")
    if shares and ranks == 1:
        remarks.append("no flag says hardware.enable_expert_parallel")
    if model == UNKNOWN_MODEL:
        name = scenario.resolve_model().name
        remarks = [f"{UNKNOWN_MODEL} is the Hugging Face name or the path of {name}", *remarks]
    defaults = {f"engine.{key}": known.default for key, known in scenario.engine.takes().items()}
    defaults |= dict.fromkeys([f"engine.{key}" for key in ("max_queued_requests", *UNSAID)])
    version = getattr(built, "version", None)
    return Deployed(
        launch,
        words_of(launch, model, values),
        options_of(launch, values),
        [*remarks, *unsaid(launch, values, defaults)],
        model,
        version,
        scenario.resolve_gpu().name,
        scenario.hardware.gpus * ranks,
        1 if ranks > 1 else replicas or 1,
        variables_of(launch, values),
    )


def _static_share(scenario: Scenario, built: Policy) -> float:
    """Return the share of memory for weights and KV that leaves the simulated cache, where its size is known."""
    try:
        return memory_settings(scenario, built).static_share()
    except InputError:  # drafts whose acceptance nobody said: a run of it would say so
        return scenario.hardware.gpu_memory_utilization
