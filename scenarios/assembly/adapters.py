"""LoRA adapters of a scenario's replicas: what they cost, and the memory of their slots."""

from scenarios.schema.cost.profile import ProfileCostConfig
from scenarios.schema.cost.roofline import RooflineCostConfig
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.timing.lora import Loras

USUAL_RANK = 16
"""vLLM's default of `max_lora_rank` (vllm/config/lora.py, 0.33)."""


def _loras(scenario: Scenario) -> Loras | None:
    """Return the adapters of a replica; None where it serves none."""
    engine = scenario.engine
    if engine.parameter("max_loras") is None:
        if engine.max_lora_rank is not None:
            raise scenario.error("engine.max_lora_rank", "the engine takes no adapters", "give engine.max_loras")
        return None
    rank = engine.max_lora_rank or USUAL_RANK
    try:
        return Loras(scenario.resolve_model(), scenario.resolve_gpu(), scenario.hardware.tensor_parallel, rank)
    except InputError as error:
        raise scenario.error("engine.max_loras", error.message, error.hint) from None


def build_adapters(scenario: Scenario) -> Loras | None:
    """Build the price of adapters; None without them, and where the cost of steps says all by itself."""
    found = _loras(scenario)
    return found if isinstance(scenario.resolve_cost(), (RooflineCostConfig, ProfileCostConfig)) else None


def adapter_bytes(scenario: Scenario) -> int:
    """Return the bytes of the adapters' slots on each GPU."""
    found = _loras(scenario)
    return 0 if found is None else scenario.engine.parameter("max_loras") * found.slot_bytes
