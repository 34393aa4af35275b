"""Routers, a file each: the router `some_name` is the class `SomeName` of `some_name.py` in this folder.

A user's own router is named `path/to/file.py:ClassName` and loaded the same way. There is no list to add a router to.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import InputError
from simulator.named_class import named_class, names_in

if TYPE_CHECKING:
    from simulator.fleet.router import Router

_CONTRACT = "a router has choose(request, replicas), which returns one of the replicas (see simulator/fleet/router.py)"


def built_in_routers() -> tuple[str, ...]:
    """Names of the routers that come with batchlab, sorted."""
    return names_in(__name__)


def load_router(name: str, base: Path | None = None) -> Router:
    """A new router; the path in `path.py:Class` is relative to `base`. Raises InputError where there is none."""
    cls = named_class("router", name, __name__, base)
    if not callable(getattr(cls, "choose", None)):
        raise InputError(f"{name} is no router", hint=_CONTRACT)
    try:
        router: Router = cls()
    except Exception as error:  # whatever a user's class raises is the user's to mend
        raise InputError(f"router {name} cannot be made: {type(error).__name__}: {error}", hint=_CONTRACT) from error
    return router
