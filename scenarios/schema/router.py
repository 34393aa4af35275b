"""The `router:` of a scenario: which replica an arriving request is given to.

A router by its name alone has its default parameters; a mapping gives the name as `kind`, and parameters beside it.
They are declared by the router (`simulator.parameters`).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from annotated_types import doc
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from scenarios.schema.base import Strict
from scenarios.schema.source.hints import did_you_mean, refusal
from simulator.errors import InputError
from simulator.parameters import CLASS_PATTERN, file_of


def _known(name: str) -> str:
    from simulator.fleet.routers import built_in_routers

    if not re.match(CLASS_PATTERN, name) and name not in (names := built_in_routers()):
        raise refusal(f"unknown router {name!r}", f"{did_you_mean(name, names)}; or your own: path.py:Class")
    return name


RouterName = Annotated[
    str, AfterValidator(_known), Field(description="the name of a router, or the path of a file and a class in it")
]


class RouterConfig(Strict):
    """A router with its parameters. Every key but these three is a parameter of the router."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[RouterName, doc("the router")]
    signal_interval_s: Annotated[
        float,
        Field(ge=0, le=1e6),
        doc("the router reads loads at every multiple of this and keeps them until the next; 0: always current loads"),
    ] = 0.0
    regret: Annotated[
        bool, doc("tell for each request what the best replica would have had; every step is executed by itself")
    ] = False

    @property
    def file(self) -> Path | None:
        """The file of a user's router; None for a built-in one."""
        return file_of(self.kind)

    @property
    def interval_s(self) -> float:
        """The seconds between two looks at the loads: as given, or usual for a built-in router."""
        from simulator.fleet.router import RouterFeatures
        from simulator.fleet.routers import router_class

        if "signal_interval_s" in self.model_fields_set or self.file is not None:
            return self.signal_interval_s
        return RouterFeatures.of(router_class(self.kind)).usual_interval_s

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that were given."""
        return dict(self.model_extra or {})

    def resolved(self) -> dict[str, Any]:
        """Every key with its value. A user's router keeps its defaults in its own file: they are left out."""
        from simulator.fleet.routers import router_parameters

        known = {} if self.file else router_parameters(self.kind)
        defaults = {name: parameter.default for name, parameter in known.items()}
        regret = {"regret": True} if self.regret else {}
        return {"kind": self.kind, "signal_interval_s": self.interval_s, **regret, **defaults, **self.parameters}

    @model_validator(mode="after")
    def _takes_its_parameters(self) -> Self:
        if self.file is not None:
            return self
        from simulator.fleet.router import RouterFeatures
        from simulator.fleet.routers import load_router, router_class, router_parameters

        known = router_parameters(self.kind)
        for key, value in self.parameters.items():
            if key in known:
                if (wrong := known[key].refusal(value)) is not None:
                    raise refusal(wrong, key=key)
            else:
                takes = f"it takes: {', '.join(('signal_interval_s', 'regret', *known))}"
                near = did_you_mean(key, tuple(known)) if known else ""
                raise refusal(f"the router {self.kind} does not use this key", f"{near}; {takes}".strip("; "), key=key)
        if self.signal_interval_s and not RouterFeatures.of(router_class(self.kind)).reads_loads:
            raise refusal(
                f"the router {self.kind} does not look at loads", "leave the key out", key="signal_interval_s"
            )
        try:
            load_router(self.kind, self.parameters)
        except InputError as error:
            raise refusal(error.message.rpartition("Error: ")[2], error.hint) from None
        return self


def as_config(value: str | RouterConfig) -> RouterConfig:
    """A router given either way."""
    return RouterConfig(kind=value) if isinstance(value, str) else value


Router = Annotated[
    Annotated[RouterName, Tag("<name>")] | Annotated[RouterConfig, Tag("<mapping>")],
    Discriminator(lambda value: "<mapping>" if isinstance(value, (Mapping, RouterConfig)) else "<name>"),
    Field(description="the name of a router, or a mapping with its `kind` and its parameters"),
]
