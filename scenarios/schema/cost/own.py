"""`cost: {kind: path.py:Class}`: a cost model of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import doc
from pydantic import ConfigDict, Field

from scenarios.schema.strict import Strict
from simulator.named_class import CLASS_PATTERN, file_of

if TYPE_CHECKING:
    from scenarios.schema.cost.priced import Priced
    from simulator.timing.cost import CostModel


class OwnCostConfig(Strict):
    """A cost model of the user's own. Every key but `kind` is a parameter of its class."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[
        str,
        Field(pattern=CLASS_PATTERN, description="the path of a file and a class in it"),
        doc("class of your own, as `path.py:Class`"),
    ]

    @property
    def file(self) -> Path:
        """The file of the class."""
        file = file_of(self.kind)
        assert file is not None  # as the pattern says
        return file

    def build(self, scenario: Priced) -> CostModel:
        """The user's model, for the scenario's model and GPUs; with a host where the scenario gives one."""
        from simulator.timing.host import WithHost
        from simulator.timing.own_cost import load_own_cost

        ranks = scenario.hardware.tensor_parallel
        given: dict[str, Any] = dict(self.model_extra or {})
        own = load_own_cost(self.kind, given, scenario.resolve_model(), scenario.resolve_gpu(), ranks)
        return own if scenario.host is None else WithHost(own, scenario.resolve_host())

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default: the class has it in its own seconds."""
        return False
