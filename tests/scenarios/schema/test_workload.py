"""What a scenario may not say of a generated workload, and what the message then says."""

from typing import Any

import pytest
from pydantic import ValidationError

from scenarios.generate import GeneratedWorkload

FIXED = {"dist": "fixed", "value": 10}
POISSON = {"process": "poisson", "rate": 6}
SPIKE = {"kind": "spike", "factor": 3}
SPAN = {"start_s": 5, "duration_s": 3}


def workload(**changes: Any) -> dict[str, Any]:
    """A good workload, with some of its only class's keys (or the workload's, in `top`) changed."""
    top = changes.pop("top", {})
    entry = {"name": "chat", "arrival": POISSON, "input": FIXED, "output": FIXED, **changes}
    return {"requests": 10, "classes": [{key: value for key, value in entry.items() if value is not None}], **top}


def arrival(**keys: Any) -> dict[str, Any]:
    return workload(arrival=keys)


def lengths(**keys: Any) -> dict[str, Any]:
    return workload(input=keys)


LOGNORMAL = {"dist": "lognormal", "median": 100, "p99": 1000}
BAD: dict[str, tuple[dict[str, Any], tuple[str | int, ...], str]] = {
    "neither end": (workload(top={"requests": None}), (), "exactly one of requests and duration_s"),
    "both ends": (workload(top={"duration_s": 5}), (), "exactly one of requests and duration_s"),
    "no requests": (workload(top={"requests": 0}), ("requests",), "greater than or equal to 1"),
    "a fraction of a request": (workload(top={"requests": 10.5}), ("requests",), "valid integer"),
    "no time": (workload(top={"requests": None, "duration_s": 0}), ("duration_s",), "greater than or equal"),
    "no classes": (workload(top={"classes": []}), ("classes",), "at least 1 item"),
    "twins": (workload(top={"classes": workload()["classes"] * 2}), (), "two classes are called 'chat'"),
    "a nameless class": (workload(name=""), ("classes", 0, "name"), "at least 1 character"),
    "a misspelt key": (workload(priorty=3), ("classes", 0, "priorty"), "Extra inputs are not permitted"),
    "no arrival anywhere": (workload(arrival=None), (), "class 'chat' has no arrival"),
    "an arrival nobody takes": (workload(top={"arrival": POISSON}), (), "every class has its own"),
    "a share of an own rate": (workload(share=0.5), (), "share of 0.5 would do nothing"),
    "a share of nothing": (workload(share=0), ("classes", 0, "share"), "greater than 0"),
    "an unknown process": (
        arrival(process="mmp", rate=1),
        ("classes", 0, "arrival"),
        "'closed_loop', 'constant', 'gamma'",
    ),
    "a closed loop of nobody": (
        arrival(process="closed_loop", concurrency=0),
        ("classes", 0, "arrival", "closed_loop", "concurrency"),
        "greater than or equal to 1",
    ),
    "a closed loop with a rate": (
        arrival(process="closed_loop", concurrency=4, rate=1),
        ("classes", 0, "arrival", "closed_loop", "rate"),
        "Extra inputs are not permitted",
    ),
    "tools in turns of one step": (
        workload(session={"turns": 2, "tool_time_s": 1}),
        ("classes", 0, "session"),
        "steps: 1",
    ),
    "a session without turns": (workload(session={}), ("classes", 0, "session", "turns"), "Field required"),
    "more jitter than backoff": (
        workload(client={"jitter": 1.5}),
        ("classes", 0, "client", "jitter"),
        "less than or equal to 1",
    ),
    "nothing to cancel": (
        workload(client={"cancel": False}),
        ("classes", 0, "client"),
        "does nothing without a timeout",
    ),
    "no process": (arrival(rate=1), ("classes", 0, "arrival"), "'process'"),
    "a rate of 0": (arrival(process="poisson", rate=0), ("classes", 0, "arrival", "poisson", "rate"), "greater than"),
    "a rate as text": (
        arrival(process="poisson", rate="6"),
        ("classes", 0, "arrival", "poisson", "rate"),
        "valid number",
    ),
    "an endless rate": (
        arrival(process="poisson", rate=float("inf")),
        ("classes", 0, "arrival", "poisson", "rate"),
        "finite number",
    ),
    "poisson with cv": (
        arrival(process="poisson", rate=1, cv=1),
        ("classes", 0, "arrival", "poisson", "cv"),
        "Extra inputs",
    ),
    "gamma without cv": (arrival(process="gamma", rate=1), ("classes", 0, "arrival", "gamma"), "cv and burstiness"),
    "gamma with both": (
        arrival(process="gamma", rate=1, cv=1, burstiness=1),
        ("classes", 0, "arrival", "gamma"),
        "cv and burstiness",
    ),
    "weibull out of range": (
        arrival(process="weibull", rate=1, cv=1000),
        ("classes", 0, "arrival", "weibull", "cv"),
        "less than or equal to 100",
    ),
    "onoff in a blink": (
        arrival(process="onoff", rate=1, on_s=0.001, off_s=1),
        ("classes", 0, "arrival", "onoff"),
        "poisson with rate 0.000999",
    ),
    "a profile backwards": (
        arrival(process="poisson", rate=1, profile=[[10, 1], [5, 2]]),
        ("classes", 0, "arrival", "poisson"),
        "found 10 before 5",
    ),
    "a profile of nothing": (
        arrival(process="poisson", rate=1, profile=[[0, 0]]),
        ("classes", 0, "arrival", "poisson"),
        "at least one factor",
    ),
    "an empty profile": (
        arrival(process="poisson", rate=1, profile=[]),
        ("classes", 0, "arrival", "poisson", "profile"),
        "at least 1 item",
    ),
    "a tiny factor": (
        arrival(process="poisson", rate=1, profile=[[0, 1e-9]]),
        ("classes", 0, "arrival", "poisson"),
        "must be 0 or at least 1e-06",
    ),
    "a profile that ends, and requests": (
        arrival(process="poisson", rate=1, profile=[[0, 1], [10, 0]]),
        (),
        "the number may never be reached",
    ),
    "an unknown shape": (
        arrival(process="poisson", rate=1, profile={"kind": "rmp", "duration_s": 3}),
        ("classes", 0, "arrival", "poisson", "profile"),
        "'ramp', 'diurnal', 'spike'",
    ),
    "a ramp of equal ratios from nothing": (
        arrival(process="poisson", rate=1, profile={"kind": "ramp", "duration_s": 3, "exponential": True}),
        ("classes", 0, "arrival", "poisson", "profile", "ramp"),
        "lead neither from 0 nor to 0",
    ),
    "a ramp to nothing, and requests": (
        arrival(
            process="poisson", rate=1, profile={"kind": "ramp", "duration_s": 3, "start_factor": 1, "end_factor": 0}
        ),
        (),
        "the number may never be reached",
    ),
    "a spike longer than its period": (
        arrival(process="poisson", rate=1, profile={**SPIKE, "start_s": 5, "duration_s": 3, "every_s": 7}),
        ("classes", 0, "arrival", "poisson", "profile", "spike"),
        "every_s 7 ends before the spike does, at 8 s",
    ),
    "an outage that never ends": (
        arrival(process="poisson", rate=1, profile={**SPIKE, "factor": 0, "start_s": 0, "duration_s": 3, "every_s": 3}),
        ("classes", 0, "arrival", "poisson", "profile", "spike"),
        "an outage all of the time, every 3 s",
    ),
    "nothing after the ramp, nor before": (
        arrival(process="poisson", rate=1, profile={"kind": "ramp", "duration_s": 3, "end_factor": 0}),
        ("classes", 0, "arrival", "poisson"),
        "at least one factor",
    ),
    "a day upside down": (
        arrival(process="poisson", rate=1, profile={"kind": "diurnal", "peak_to_trough": 0.5}),
        ("classes", 0, "arrival", "poisson", "profile", "diurnal", "peak_to_trough"),
        "greater than or equal to 1",
    ),
    "mmpp of one state": (
        arrival(process="mmpp", rate=1, states=[[1, 2]]),
        ("classes", 0, "arrival", "mmpp", "states"),
        "at least 2 items",
    ),
    "mmpp of silence": (
        arrival(process="mmpp", rate=1, states=[[0, 2], [0, 3]]),
        ("classes", 0, "arrival", "mmpp"),
        "at least one factor",
    ),
    "a state without length": (
        arrival(process="mmpp", rate=1, states=[[1, 2], [2, 0]]),
        ("classes", 0, "arrival", "mmpp", "states", 1, 1),
        "greater than or equal",
    ),
    "transitions of other states": (
        arrival(process="mmpp", rate=1, states=[[1, 2], [2, 3]], transitions=[[0, 1]]),
        ("classes", 0, "arrival", "mmpp"),
        "must be 2 rows of 2 weights",
    ),
    "a state that follows itself": (
        arrival(process="mmpp", rate=1, states=[[1, 2], [2, 3]], transitions=[[1, 1], [1, 0]]),
        ("classes", 0, "arrival", "mmpp"),
        "row 1 must be 0 for staying",
    ),
    "a state that nothing leads to": (
        arrival(process="mmpp", rate=1, states=[[1, 2], [2, 3], [3, 1]], transitions=[[0, 1, 0], [1, 0, 0], [1, 0, 0]]),
        ("classes", 0, "arrival", "mmpp"),
        "every state must lead to every other",
    ),
    "a correlation of 2": (workload(corr=2), ("classes", 0, "corr"), "less than or equal to 1"),
    "a correlation of equal lengths": (workload(corr=0.5), ("classes", 0), "corr needs lengths that vary"),
    "a prefix of nothing": (workload(prefix={"tokens": 0}), ("classes", 0, "prefix", "tokens"), "greater than"),
    "no texts": (workload(prefix={"tokens": 9, "groups": 0}), ("classes", 0, "prefix", "groups"), "greater than"),
    "neither classes nor preset": ({"requests": 5}, (), "give classes, a benchmark, or a preset: chat, code"),
    "an unknown distribution": (
        lengths(dist="zipf", theta=1),
        ("classes", 0, "input"),
        "'lognormal_pareto', 'empirical'",
    ),
    "fixed outside": (lengths(dist="fixed", value=5, max=4), ("classes", 0, "input", "fixed"), "value 5 is outside"),
    "zero tokens": (
        lengths(dist="fixed", value=0),
        ("classes", 0, "input", "fixed", "value"),
        "greater than or equal to 1",
    ),
    "half a token": (lengths(dist="fixed", value=1.5), ("classes", 0, "input", "fixed", "value"), "valid integer"),
    "uniform upside down": (
        lengths(dist="uniform", min=9, max=3),
        ("classes", 0, "input", "uniform"),
        "min 9 is above",
    ),
    "uniform without end": (lengths(dist="uniform", min=9), ("classes", 0, "input", "uniform", "max"), "required"),
    "normal without spread": (
        lengths(dist="normal", mean=9, sd=0),
        ("classes", 0, "input", "normal", "sd"),
        "greater than",
    ),
    "normal far below 1": (
        lengths(dist="normal", mean=-900, sd=5),
        ("classes", 0, "input", "normal"),
        "check the bounds",
    ),
    "bounds upside down": (lengths(**LOGNORMAL, min=9, max=3), ("classes", 0, "input", "lognormal"), "min 9 is above"),
    "bounds around nothing": (
        lengths(**LOGNORMAL, min=100_000),
        ("classes", 0, "input", "lognormal"),
        "at least 100000 tokens, fewer than 0.001",
    ),
    "half a lognormal": (lengths(dist="lognormal", median=5), ("classes", 0, "input", "lognormal"), "found median"),
    "a mixed lognormal": (
        lengths(dist="lognormal", median=5, sigma=2),
        ("classes", 0, "input", "lognormal"),
        "found median, sigma",
    ),
    "p99 below the median": (
        lengths(dist="lognormal", median=5, p99=4),
        ("classes", 0, "input", "lognormal"),
        "p99 4 must be above",
    ),
    "a tail of all": (
        lengths(**{**LOGNORMAL, "dist": "lognormal_pareto"}, tail_share=1.0, alpha=2),
        ("classes", 0, "input", "lognormal_pareto", "tail_share"),
        "less than 1",
    ),
    "a tail beyond the bound": (
        lengths(**{**LOGNORMAL, "dist": "lognormal_pareto"}, tail_share=0.1, alpha=2, tail_from=500, max=400),
        ("classes", 0, "input", "lognormal_pareto"),
        "the tail starts at 500",
    ),
    "a tail cut to nothing": (
        lengths(**{**LOGNORMAL, "dist": "lognormal_pareto"}, tail_share=0.1, alpha=0.01, tail_from=500, max=500),
        ("classes", 0, "input", "lognormal_pareto"),
        "less than 0.001 of the body or of the tail",
    ),
    "empirical of nothing": (lengths(dist="empirical"), ("classes", 0, "input", "empirical"), "quantiles and values"),
    "empirical of both": (
        lengths(dist="empirical", values=[1], quantiles={0.0: 1, 1.0: 2}),
        ("classes", 0, "input", "empirical"),
        "quantiles and values",
    ),
    "one quantile": (
        lengths(dist="empirical", quantiles={0.5: 9}),
        ("classes", 0, "input", "empirical"),
        "at least two",
    ),
    "percent": (
        lengths(dist="empirical", quantiles={50: 9, 99: 20}),
        ("classes", 0, "input", "empirical"),
        "p99 is 0.99",
    ),
    "falling quantiles": (
        lengths(dist="empirical", quantiles={0.5: 9, 0.9: 8}),
        ("classes", 0, "input", "empirical"),
        "9 at 0.5, but 8 at 0.9",
    ),
    "no values": (
        lengths(dist="empirical", values=[]),
        ("classes", 0, "input", "empirical", "values"),
        "at least 1 item",
    ),
    "values out of bounds": (
        lengths(dist="empirical", values=[5, 6], max=4),
        ("classes", 0, "input", "empirical"),
        "none of the values",
    ),
    "a quantile twice": (
        lengths(dist="empirical", quantiles={"0.5": 9, 0.5: 10, 0.9: 11}),
        ("classes", 0, "input", "empirical", "quantiles"),
        "stands twice",
    ),
    "a quantile in words": (
        lengths(dist="empirical", quantiles={"p50": 9, "p99": 20}),
        ("classes", 0, "input", "empirical", "quantiles", "p50", "[key]"),
        "valid number",
    ),
}


def _without_tags(place: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The keys of a place, without the names by which unions tell their arms, as <class>."""
    return tuple(step for step in place if not str(step).startswith("<"))


@pytest.mark.parametrize(("data", "place", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_where_it_stands(data: dict[str, Any], place: tuple[str | int, ...], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GeneratedWorkload.model_validate(data)
    errors = {_without_tags(error["loc"]): error["msg"] for error in caught.value.errors()}
    assert place in errors
    assert text in errors[place]


def test_a_profile_may_end_where_the_duration_ends_the_workload() -> None:
    process = {"process": "poisson", "rate": 1, "profile": [[0, 1], [10, 0]]}
    GeneratedWorkload.model_validate(workload(arrival=process, top={"requests": None, "duration_s": 20}))


def test_survives_json() -> None:
    data = workload(
        arrival={"process": "gamma", "rate": 6, "burstiness": 0.5, "profile": [[0, 1], [10, 2]]},
        output={"dist": "empirical", "quantiles": {0.05: 41, 0.5: 129, 1.0: 1000}},
    )
    data["classes"].append(
        {
            "name": "batch",
            "preset": "code",
            "arrival": {"process": "mmpp", "rate": 3, "states": [[1, 9], [5, 2]], "profile": {**SPIKE, **SPAN}},
            "prefix": {"tokens": 100, "groups": 3, "zipf": 1.2},
        }
    )
    config = GeneratedWorkload.model_validate(data)
    assert GeneratedWorkload.model_validate_json(config.model_dump_json()) == config
    assert GeneratedWorkload.model_validate(config.model_dump(mode="json")) == config
