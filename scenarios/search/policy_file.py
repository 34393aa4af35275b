"""The file of the policy that a search has found: a small class over a shipped one, with the found defaults."""

from collections.abc import Mapping
from typing import Any

from scenarios.assembly.engine_policy import build_policy
from scenarios.schema.loader import dump, load
from scenarios.schema.scenario import Scenario
from simulator.policies import policy_parameters
from simulator.queues import Order

CLASS = "Found"
FILE = "policy.py"


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
    imports.append("from simulator.policies import policy_class, server_of")
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


def _weights(value: object) -> Mapping[str, Any]:
    return value.parameters if isinstance(value, Order) else {}
