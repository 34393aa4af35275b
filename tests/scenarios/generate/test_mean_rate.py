"""`workload.arrival: {rate: R}` over classes that have arrivals of their own: one factor, and the mean asked for."""

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from scenarios.generate import generate
from scenarios.generate.classes import at_mean_rate, mean_rate
from scenarios.schema.workload import GeneratedWorkload
from simulator.errors import InputError

_READ = TypeAdapter(GeneratedWorkload)


def workload(*arrivals: dict[str, Any], **more: Any) -> GeneratedWorkload:
    lengths = {"dist": "fixed", "value": 8}
    classes = [
        {"name": str(place), "arrival": arrival, "input": lengths, "output": lengths}
        for place, arrival in enumerate(arrivals)
    ]
    return _READ.validate_python({"classes": classes, **({} if "duration_s" in more else {"requests": 4000}), **more})


POISSON = {"process": "poisson", "rate": 3.0}
GAMMA = {"process": "gamma", "rate": 1.0, "cv": 2.0}
BURST = {"process": "poisson", "rate": 20.0, "profile": [[0, 0], [60, 0], [60, 1], [65, 1], [65, 0]]}


def test_one_class_has_the_rate_to_the_bit() -> None:
    scaled = generate(workload(POISSON, arrival={"rate": 5.0}), 1)
    assert np.array_equal(scaled.arrival_s, generate(workload({**POISSON, "rate": 5.0}), 1).arrival_s)


def test_classes_keep_their_proportions() -> None:
    scaled = at_mean_rate(workload(POISSON, GAMMA), 8.0)
    assert [entry.arrival.rate for entry in scaled.all_classes() if entry.arrival is not None] == [6.0, 2.0]  # type: ignore[union-attr] # none is closed


@pytest.mark.parametrize("rate", [0.5, 3.0, 30.0])
@pytest.mark.parametrize("end", [{"requests": 900}, {"duration_s": 200.0}])
def test_the_mean_is_what_was_asked_for_where_rates_change(rate: float, end: dict[str, Any]) -> None:
    scaled = at_mean_rate(workload(POISSON, BURST, **end), rate)
    found = mean_rate(scaled)
    assert found is not None
    assert found == pytest.approx(rate, rel=2e-3)
    drawn = generate(workload(POISSON, BURST, arrival={"rate": rate}, **end), 3)
    assert np.array_equal(drawn.arrival_s, generate(scaled, 3).arrival_s)


def test_a_shared_process_stays_what_it_is() -> None:
    lengths = {"dist": "fixed", "value": 8}
    shared = _READ.validate_python(
        {"requests": 100, "arrival": POISSON, "classes": [{"name": "a", "input": lengths, "output": lengths}]}
    )
    assert shared.shared is not None
    assert mean_rate(shared) == pytest.approx(3.0, rel=2e-3)


def test_a_closed_loop_has_no_rate() -> None:
    loop = {"process": "closed_loop", "concurrency": 4}
    with pytest.raises(InputError, match="no class has arrivals") as caught:
        generate(workload(loop, arrival={"rate": 5.0}), 0)
    assert "concurrency" in str(caught.value)
