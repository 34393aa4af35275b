"""TGI and TensorRT-LLM cannot run here: their schedulers, told again from the sources, beside the policies.

Every decision of every step is the same. `BATCHLAB_PARITY_CASES` says how many cases of each kind `make more-tests`
takes.
"""

import os

import pytest

from tests.parity.references import KINDS, compare, compare_case

MANY = int(os.environ.get("BATCHLAB_PARITY_CASES", "400"))


@pytest.mark.parametrize("kind", KINDS)
def test_random_cases_are_scheduled_as_by_the_reference(kind: str) -> None:
    print(compare(kind, range(50)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_cases_are_scheduled_as_by_the_reference(kind: str) -> None:
    print(compare(kind, range(1000, 1000 + MANY)))


def test_the_cases_are_short_of_memory() -> None:
    """Enough to pause requests often, several of them again and again."""
    told = [compare_case("tensorrt_llm max_utilization", seed)[1] for seed in range(50)]
    pauses = [request for steps in told for step in steps for request in step.preempted]
    assert len(pauses) > 100
