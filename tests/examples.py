"""How many examples a test takes: a share in `make test`, more in `make long-tests`, all in `make more-tests`.

`BATCHLAB_HYPOTHESIS` chooses: `default` takes the share, `long` other examples, a fifth of the number that the test
asks for, and `more` new ones each time, as many as it asks for (2,000 where it asks for none).
"""

import os
from typing import Any

from hypothesis import settings

PROFILES = ("default", "long", "more")
PROFILE = os.environ.get("BATCHLAB_HYPOTHESIS", "default")
# `make test` takes one example of so many, and at least so many of each law: it ends within 6 minutes on two cores.
ONE_OF = 30
FEWEST = 2
# `make long-tests` takes one of so many: it ends within 15 minutes.
LONG_ONE_OF = 5


def number(count: int, profile: str = PROFILE) -> int:
    """How many of `count` examples a profile takes."""
    taken = {"default": count // ONE_OF, "long": count // LONG_ONE_OF}.get(profile, count)
    return min(count, max(FEWEST, taken))


def examples(count: int, **more: Any) -> settings:
    """Settings of a test that asks for `count` examples."""
    return settings(max_examples=number(count), **more)
