"""What a profile was measured beside, from readings to JSON and back."""

import json

import pytest

from simulator.lockstep.lockstep_run import Canary, ControlStep, Readings


def test_readings_are_a_median_and_the_spread_of_the_middle_half() -> None:
    assert Readings.of([2.0]) == Readings(2.0, 0.0)
    found = Readings.of([1.0, 4.0, 2.0, 3.0, 100.0])
    assert (found.median, found.spread) == pytest.approx((3.0, 2.0 / 3.0))


def test_a_canary_survives_a_file() -> None:
    controls = {"mixed": (ControlStep(16, 256, 128), Readings(0.0153, 0.02))}
    found = Canary("58fb3a5f", 0.00765, Readings(0.9168, 0.18), controls)
    assert Canary.of_json(json.loads(json.dumps(found.to_json()))) == found


def test_an_older_one_has_no_controls() -> None:
    assert Canary.of_json({"us": 2000.0, "of": "x"}) == Canary("x", 0.002)
    with pytest.raises(KeyError):
        Canary.of_json({"us": 2000.0})
