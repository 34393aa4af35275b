"""`cost: {kind: roofline}`: step times from the dimensions of model and GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import doc

from scenarios.schema.cost.priced import host_key
from scenarios.schema.strict import Strict

if TYPE_CHECKING:
    from scenarios.schema.cost.priced import Priced
    from simulator.timing.cost import CostModel


class RooflineCostConfig(Strict):
    """Step times from the dimensions of model and GPU."""

    elsewhere: ClassVar = staticmethod(host_key)

    kind: Annotated[Literal["roofline"], doc("figures of model and GPU")]

    def build(self, scenario: Priced) -> CostModel:
        """The cost model of the scenario's model on its GPUs."""
        from simulator.timing.roofline_cost import Roofline
        from simulator.timing.windowed_roofline import WindowedRoofline

        host, model = scenario.resolve_host(), scenario.resolve_model()
        plain = Roofline(
            model,
            scenario.resolve_gpu(),
            scenario.hardware.tensor_parallel,
            host_s=host.step_s,
            host_per_seq_s=host.per_seq_s,
        )
        return WindowedRoofline(plain) if model.windowed_layers else plain

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default."""
        return True
