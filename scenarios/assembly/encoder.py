"""The encoder of images of a scenario's replicas, and what it costs."""

from scenarios.schema.cost.profile import ProfileCostConfig
from scenarios.schema.cost.roofline import RooflineCostConfig
from scenarios.schema.scenario import Scenario
from simulator.timing.encoder import EncoderTime


def build_encoder(scenario: Scenario) -> EncoderTime | None:
    """Build the price of images; None where a server takes none, or where the cost of steps says all by itself."""
    if scenario.engine.parameter("max_image_embeddings") is None:
        return None
    if not isinstance(scenario.resolve_cost(), (RooflineCostConfig, ProfileCostConfig)):
        return None
    model = scenario.resolve_model()
    if not model.encoder_parameters:
        what = f"the model {model.name} has no encoder of images"
        hint = f"model: {{base: {model.name}, encoder_parameters: 6.7e8}}, or no max_image_embeddings"
        raise scenario.error("engine.max_image_embeddings", what, hint)
    return EncoderTime(model, scenario.resolve_gpu(), scenario.hardware.tensor_parallel)
