"""`cost: {kind: auto}`: the best step times that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import doc

from scenarios.schema.cost.priced import host_key
from scenarios.schema.cost.profile import ProfileCostConfig
from scenarios.schema.cost.roofline import RooflineCostConfig
from scenarios.schema.strict import Strict
from simulator.errors import InputError

if TYPE_CHECKING:
    from scenarios.schema.cost.priced import Priced
    from simulator.timing.cost import CostModel


class AutoCostConfig(Strict):
    """Measured kernels as `kind: profile` finds them, else `kind: roofline`.

    In this order: a profile that was fitted to model and GPU; tables of the GPU and the policy's engine, of the version
    nearest to `engine.version`; tables of other engines on that GPU; figures of model and GPU. A run's `scenario.yaml`
    and `provenance` say which it was. A policy that is a server's takes this kind where `cost` is left out.
    """

    elsewhere: ClassVar = staticmethod(host_key)

    kind: Annotated[Literal["auto"], doc("measured kernels if there are any, else figures of model and GPU")]

    def chosen(self, scenario: Priced) -> ProfileCostConfig | RooflineCostConfig:
        """Return the kind of cost that stands for this one.

        Tables stand there by name, but for those that borrow parts from others.
        """
        from simulator.timing.tables import parts_of

        measured = ProfileCostConfig(kind="profile")
        try:
            profile = measured.found(scenario)
        except InputError:
            return RooflineCostConfig(kind="roofline")
        borrows = any(part.how == "borrowed" for part in parts_of(profile))
        return measured if borrows else ProfileCostConfig(kind="profile", name=profile.name)

    def build(self, scenario: Priced) -> CostModel:
        """The cost model of what is chosen: figures of model and GPU price every model."""
        return self.chosen(scenario).build(scenario)

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default: all kinds that are chosen lack it."""
        return True
