"""Law 9: all costs and arrival times x 2 -> all times x 2, exactly; the same later is the same."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.results.records import Records
from tests.examples import examples
from tests.laws.scenarios import POLICIES, scaled, scenarios
from tests.laws.test_naive_engine import in_step


@pytest.mark.parametrize("factor", [2.0, 0.5])
@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(30)
def test_twice_the_time(name: str, factor: float, data: st.DataObject) -> None:
    """A power of two scales every float exactly: columns of seconds are multiplied, all others are the same."""
    scenario = data.draw(scenarios(name))
    plain, stretched = scenario.run().records, scaled(scenario, factor).run().records
    assert differences(times(plain, factor), stretched) == []
    if len(plain.step_end_s):
        assert plain.step_end_s[0] != stretched.step_end_s[0]


def times(records: Records, factor: float) -> Records:
    """The records with all times multiplied."""
    changed: dict[str, Any] = {}
    for name in ("requests", "rows", "gaps", "requeues"):
        columns: Any = getattr(records, name)
        seconds = [field.name for field in fields(columns) if field.name.endswith("_s")]
        changed[name] = replace(columns, **{column: getattr(columns, column) * factor for column in seconds})
    return replace(records, step_end_s=records.step_end_s * factor, **changed)


LATER_S = 15 * 2.0**17
"""Exact in sums, and a multiple of the seconds between two looks that routers take at what they keep: 5 and 60."""
INSTANTS = {
    "requests": ("arrival_s", "scheduled_s", "first_token_s", "last_token_s", "released_s"),
    "rows": ("start_s", "end_s"),
    "gaps": ("end_s",),
    "requeues": ("from_s", "to_s"),
}


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(30)
def test_the_same_three_weeks_later(name: str, data: st.DataObject) -> None:
    """All instants move along, exactly where they are multiples of a power of two; durations stay."""
    scenario = data.draw(in_step(data.draw(scenarios(name))))
    workload = replace(scenario.workload, arrival_s=scenario.workload.arrival_s + LATER_S)
    now, later = scenario.run().records, replace(scenario, workload=workload).run().records
    changed: dict[str, Any] = {}
    for table, instants in INSTANTS.items():
        columns: Any = getattr(now, table)
        changed[table] = replace(columns, **{column: getattr(columns, column) + LATER_S for column in instants})
    assert differences(replace(now, step_end_s=now.step_end_s + LATER_S, **changed), later) == []
