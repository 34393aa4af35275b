"""The `router:` of a scenario: which replica an arriving request is given to."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from scenarios.schema.source.hints import did_you_mean, refusal

_USERS_OWN = re.compile(r".+\.py:[^\W\d]\w*")


def _known(name: str) -> str:
    from simulator.fleet.routers import built_in_routers

    if not _USERS_OWN.fullmatch(name) and name not in (names := built_in_routers()):
        raise refusal(f"unknown router {name!r}", f"{did_you_mean(name, names)}; or your own: path.py:Class")
    return name


RouterName = Annotated[
    str, AfterValidator(_known), Field(description="the name of a router, or the path of a file and a class in it")
]
