"""What the tests beside vLLM need: an interpreter that has it, which is not the one that runs the tests."""

from __future__ import annotations

from functools import cache

from tests import conftest
from tests.parity import live


@cache
def no_vllm() -> str | None:
    """Why vLLM's scheduler cannot be asked here, or None."""
    return live.missing()


conftest.NEEDS["vllm"] = no_vllm
