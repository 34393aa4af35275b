"""The files of the policy that a search has found: a small class over a shipped one, and the class for vLLM."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scenarios.assembly.engine_policy import build_policy
from scenarios.plan.candidate import POLICY, make_candidate
from scenarios.plan.deploy import deployed
from scenarios.runs.storage.run_folder import POLICY as FILE
from scenarios.runs.storage.run_folder import SCHEDULER
from scenarios.schema.loader import dump, load
from scenarios.schema.scenario import Scenario
from scenarios.servers.flags import line
from simulator.policies import DEFAULT_POLICY, policy_class, policy_parameters
from simulator.queues import Order

CLASS = "Found"
_ORDER = "weighted"
_UNKNOWN = ("deadline_weight", "class_s")  # weights of what vLLM does not know of a request


def policy_text(scenario: Scenario, about: str) -> str:
    """Return the text of a file whose class `Found` decides as the scenario's policy does; `about` says what it is."""
    built, name = build_policy(scenario), scenario.engine.policy
    values = {key: getattr(built, key) for key in policy_parameters(type(built))}
    fields = [
        f"    {key}: Any = {values[key]!r}"
        for key, known in policy_parameters(type(built)).items()
        if (values[key], _weights(values[key])) != (known.default, _weights(known.default))
    ]
    imports = ["from dataclasses import dataclass", *(["from typing import Any"] if fields else []), ""]
    imports += ["from scenarios.servers import server_of", "from simulator.policies import policy_class"]
    if isinstance(values.get("order"), Order):
        imports.append("from simulator.queues import Order")
    made = [f"Base: Any = policy_class({name!r})" if fields else f"Base = policy_class({name!r})"]
    made.append(f"SERVER = server_of({name!r})")
    head = ["@dataclass(frozen=True, slots=True)", f"class {CLASS}(Base):"]
    doc = f'    """`{type(built).__name__}` with {"other defaults" if fields else "its own defaults"}."""'
    below = ["", *fields] if fields else []
    return "\n".join([f'"""{about}"""', "", *imports, "", *made, "", "", *head, doc, *below, ""])


def scenario_text(scenario: Scenario, path: str) -> str:
    """Return the scenario that runs the file at `path`, which stands beside it; the engine's own keys stay."""
    taken = scenario.engine.takes()
    data = scenario.model_dump(exclude_unset=True)
    kept = {key: value for key, value in data.get("engine", {}).items() if key not in taken}
    data["engine"] = {**kept, "policy": f"{path}:{CLASS}"}
    return dump(load(data, check_files=False)).replace(f"{path}:{CLASS}", f"{FILE}:{CLASS}")


def weights_of(scenario: Scenario) -> dict[str, Any] | None:
    """The weights of the queue's order, where vLLM's scheduler decides with them; None for any other policy.

    A class and a deadline of a request's own are nothing that vLLM knows.
    """
    built: Any = build_policy(scenario)
    order = getattr(built, "order", None)
    is_vllm = getattr(type(built), "plan", None) is getattr(policy_class(DEFAULT_POLICY), "plan", None)
    if not is_vllm or order != _ORDER or not isinstance(order, Order) or any(map(order.parameters.get, _UNKNOWN)):
        return None
    return {key: value for key, value in order.parameters.items() if key not in _UNKNOWN}


def scheduler_text(weights: Mapping[str, Any]) -> str:
    """Return the text of the file with the scheduler class for vLLM, with these weights."""
    text = (Path(__file__).parents[1] / "templates" / SCHEDULER).read_text(encoding="utf-8")
    for key, value in {"late_after_s": None, **weights}.items():
        text, count = re.subn(rf'"{key}": [^,]+,', f'"{key}": {value!r},', text)
        assert count == 1, key
    return text


def command_of(scenario: Scenario) -> str | None:
    """The command of a server that decides as the scenario's policy does; None where no flags say all of it.

    For weights of vLLM's queue it names the class of `scheduler_text`.
    """
    more = ""
    if weights_of(scenario) is not None:
        built = build_policy(scenario)
        values = {key: getattr(built, key) for key in policy_parameters(type(built)) if key != "order"}
        scenario = make_candidate(
            scenario, {POLICY: DEFAULT_POLICY, "engine.order": "fcfs", **{f"engine.{k}": v for k, v in values.items()}}
        ).scenario
        more = f" --scheduler-cls {SCHEDULER.removesuffix('.py')}.WeightedScheduler"
    server = deployed(scenario)
    if isinstance(server, str) or not server.launch.is_own or any("no flag says" in each for each in server.remarks):
        return None
    return f"{line(server.words)}{more}"


def _weights(value: object) -> Mapping[str, Any]:
    return value.parameters if isinstance(value, Order) else {}
