"""Routers, a file each: the router `some_name` is the class `SomeName` of `some_name.py` in this folder.

A user's own router is named `path/to/file.py:ClassName` and loaded the same way. There is no list to add a router to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.errors import InputError
from simulator.fleet.router import Draws
from simulator.parameters import Parameter, check_given, named_class, names_in, parameters_of

if TYPE_CHECKING:
    from simulator.fleet.router import Router

_CONTRACT = "a router has choose(request, replicas), which returns one of the replicas (see simulator/fleet/router.py)"


def built_in_routers() -> tuple[str, ...]:
    """Names of the routers that come with batchlab, sorted."""
    return names_in(__name__)


def router_class(name: str, base: Path | None = None) -> Callable[..., Router]:
    """The class of a built-in router, or of `path.py:Class`, the path being relative to `base`."""
    cls: type[Any] = named_class("router", name, __name__, base)
    if not callable(getattr(cls, "choose", None)):
        raise InputError(f"{name} is no router", hint=_CONTRACT)
    return cls


def router_parameters(name: str, base: Path | None = None) -> Mapping[str, Parameter]:
    """A router's parameters by name, in the order of their declaration."""
    return parameters_of(router_class(name, base))


def load_router(
    name: str,
    parameters: Mapping[str, object] | None = None,
    base: Path | None = None,
    *,
    generator: np.random.Generator | None = None,
) -> Router:
    """A new router with its parameters; the path in `path.py:Class` is relative to `base`.

    A router that draws random numbers takes them from `generator`. Raises InputError where there is no such router, and
    for a parameter that is unknown, missing or out of its limits.
    """
    given = parameters or {}
    cls = router_class(name, base)
    check_given("router", name, router_parameters(name, base), given)
    try:
        router = cls(**given)
        if callable(start := getattr(router, "start", None)):
            start(Draws(generator or np.random.Generator(np.random.PCG64(0))))
    except Exception as error:  # whatever a user's class raises is the user's to mend
        raise InputError(f"router {name} cannot be made: {type(error).__name__}: {error}", hint=_CONTRACT) from error
    return router
