"""How many examples a test takes: a share in `make test`, the rest of them in `make long-tests`.

`BATCHLAB_HYPOTHESIS` chooses: `default` takes the share, `long` other examples, as many as are left of the number that
the test asks for, and `more` new ones each time, as many as it asks for (2,000 where it asks for none).
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

PROFILES = ("default", "long", "more")
PROFILE = os.environ.get("BATCHLAB_HYPOTHESIS", "default")
# `make test` takes one example of so many, and at least so many of each law.
ONE_OF = 10
FEWEST = 5


def number(count: int, profile: str = PROFILE) -> int:
    """How many of `count` examples a profile takes."""
    few = min(count, max(FEWEST, count // ONE_OF))
    return {"default": few, "long": max(1, count - few)}.get(profile, count)


def examples(count: int, **more: Any) -> settings:
    """Settings of a test that asks for `count` examples."""
    return settings(max_examples=number(count), **more)
