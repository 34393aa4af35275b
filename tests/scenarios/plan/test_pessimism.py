"""Plans by the pessimistic end of the prediction."""

import pytest

from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import parse_goal
from scenarios.plan.plan import make_plan
from scenarios.plan.trial import AS_PRICED, longer
from scenarios.schema.loader import load
from simulator.errors import InputError
from tests.scenarios.prediction.test_prediction import LINEAR, scenario


def test_a_confidence_makes_the_rate_smaller_and_names_the_interval() -> None:
    base = load(scenario({"process": "poisson", "rate": 8.0}))
    goals = [parse_goal("p90_tpot_ms<=20", base)]
    plain, sure = (make_plan(base, goals, confidence=each, seeds=1) for each in (None, 0.9))
    best, pessimistic = (each.answers[0] for each in (plain, sure))
    assert best.bounds is not None
    assert pessimistic.bounds is not None
    assert pessimistic.bounds.value < 0.95 * best.bounds.value
    assert pessimistic.entry()["prediction"]["coverage"] == 0.9
    assert pessimistic.entry()["prediction"]["metrics"]["mean_tpot_ms"]["low"] > 0
    assert "prediction" not in best.entry()
    assert any("pessimistic end of 90 %" in note for note in sure.notes)


def test_without_a_confidence_nothing_is_longer() -> None:
    base = load(scenario(cost=LINEAR))
    candidate = Candidate({}, base)
    assert longer(candidate, None) == AS_PRICED
    with pytest.raises(InputError, match="cost: kind: linear has none"):
        longer(candidate, 0.9)
