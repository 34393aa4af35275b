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


Bad = tuple[dict[str, Any], tuple[str | int, ...], str]
"""A workload, the place of what is wrong with it, and part of the message."""


def chat(place: str, said: str, **changes: Any) -> Bad:
    """What is wrong stands in the class, at keys and indices with dots between."""
    keys = [int(key) if key.isdigit() else key for key in place.split(".") if key]
    return workload(**changes), ("classes", 0, *keys), said


def arrival(place: str, said: str, **keys: Any) -> Bad:
    """What is wrong stands in the class's arrival."""
    return chat(f"arrival.{keys['process']}.{place}", said, arrival=keys)


def lengths(place: str, said: str, **keys: Any) -> Bad:
    """What is wrong stands in the class's input."""
    return chat(f"input.{keys['dist']}.{place}", said, input=keys)


LOGNORMAL = {"dist": "lognormal", "median": 100, "p99": 1000}
BAD: dict[str, Bad] = {
    "neither end": (workload(top={"requests": None}), (), "exactly one of requests and duration_s"),
    "both ends": (workload(top={"duration_s": 5}), (), "exactly one of requests and duration_s"),
    "no requests": (workload(top={"requests": 0}), ("requests",), "greater than or equal to 1"),
    "a fraction of a request": (workload(top={"requests": 10.5}), ("requests",), "valid integer"),
    "no time": (workload(top={"requests": None, "duration_s": 0}), ("duration_s",), "greater than or equal"),
    "no classes": (workload(top={"classes": []}), ("classes",), "at least 1 item"),
    "twins": (workload(top={"classes": workload()["classes"] * 2}), (), "two classes are called 'chat'"),
    "a nameless class": chat("name", "at least 1 character", name=""),
    "a misspelt key": chat("priorty", "Extra inputs are not permitted", priorty=3),
    "no arrival anywhere": (workload(arrival=None), (), "class 'chat' has no arrival"),
    "an arrival nobody takes": (workload(top={"arrival": POISSON}), (), "every class has its own"),
    "a share of an own rate": (workload(share=0.5), (), "share of 0.5 would do nothing"),
    "a share of nothing": chat("share", "greater than 0", share=0),
    "an unknown process": chat("arrival", "'closed_loop', 'constant', 'gamma'", arrival={"process": "mmp", "rate": 1}),
    "a closed loop of nobody": arrival(
        "concurrency", "greater than or equal to 1", process="closed_loop", concurrency=0
    ),
    "a closed loop with a rate": arrival(
        "rate", "Extra inputs are not permitted", process="closed_loop", concurrency=4, rate=1
    ),
    "tools in turns of one step": chat("session", "steps: 1", session={"turns": 2, "tool_time_s": 1}),
    "a session without turns": chat("session.turns", "Field required", session={}),
    "more jitter than backoff": chat("client.jitter", "less than or equal to 1", client={"jitter": 1.5}),
    "nothing to cancel": chat("client", "does nothing without a timeout", client={"cancel": False}),
    "no process": chat("arrival", "'process'", arrival={"rate": 1}),
    "a rate of 0": arrival("rate", "greater than", process="poisson", rate=0),
    "a rate as text": arrival("rate", "valid number", process="poisson", rate="6"),
    "an endless rate": arrival("rate", "finite number", process="poisson", rate=float("inf")),
    "poisson with cv": arrival("cv", "Extra inputs", process="poisson", rate=1, cv=1),
    "gamma without cv": arrival("", "cv and burstiness", process="gamma", rate=1),
    "gamma with both": arrival("", "cv and burstiness", process="gamma", rate=1, cv=1, burstiness=1),
    "weibull out of range": arrival("cv", "less than or equal to 100", process="weibull", rate=1, cv=1000),
    "onoff in a blink": arrival("", "poisson with rate 0.000999", process="onoff", rate=1, on_s=0.001, off_s=1),
    "a profile backwards": arrival("", "found 10 before 5", process="poisson", rate=1, profile=[[10, 1], [5, 2]]),
    "a profile of nothing": arrival("", "at least one factor", process="poisson", rate=1, profile=[[0, 0]]),
    "an empty profile": arrival("profile", "at least 1 item", process="poisson", rate=1, profile=[]),
    "a tiny factor": arrival("", "must be 0 or at least 1e-06", process="poisson", rate=1, profile=[[0, 1e-9]]),
    "a profile that ends, and requests": (
        workload(arrival={"process": "poisson", "rate": 1, "profile": [[0, 1], [10, 0]]}),
        (),
        "the number may never be reached",
    ),
    "an unknown shape": arrival(
        "profile", "'ramp', 'diurnal', 'spike'", process="poisson", rate=1, profile={"kind": "rmp", "duration_s": 3}
    ),
    "a ramp of equal ratios from nothing": arrival(
        "profile.ramp",
        "lead neither from 0 nor to 0",
        process="poisson",
        rate=1,
        profile={"kind": "ramp", "duration_s": 3, "exponential": True},
    ),
    "a ramp to nothing, and requests": (
        workload(
            arrival={
                "process": "poisson",
                "rate": 1,
                "profile": {"kind": "ramp", "duration_s": 3, "start_factor": 1, "end_factor": 0},
            }
        ),
        (),
        "the number may never be reached",
    ),
    "a spike longer than its period": arrival(
        "profile.spike",
        "every_s 7 ends before the spike does, at 8 s",
        process="poisson",
        rate=1,
        profile={**SPIKE, "start_s": 5, "duration_s": 3, "every_s": 7},
    ),
    "an outage that never ends": arrival(
        "profile.spike",
        "an outage all of the time, every 3 s",
        process="poisson",
        rate=1,
        profile={**SPIKE, "factor": 0, "start_s": 0, "duration_s": 3, "every_s": 3},
    ),
    "nothing after the ramp, nor before": arrival(
        "", "at least one factor", process="poisson", rate=1, profile={"kind": "ramp", "duration_s": 3, "end_factor": 0}
    ),
    "a day upside down": arrival(
        "profile.diurnal.peak_to_trough",
        "greater than or equal to 1",
        process="poisson",
        rate=1,
        profile={"kind": "diurnal", "peak_to_trough": 0.5},
    ),
    "mmpp of one state": arrival("states", "at least 2 items", process="mmpp", rate=1, states=[[1, 2]]),
    "mmpp of silence": arrival("", "at least one factor", process="mmpp", rate=1, states=[[0, 2], [0, 3]]),
    "a state without length": arrival(
        "states.1.1", "greater than or equal", process="mmpp", rate=1, states=[[1, 2], [2, 0]]
    ),
    "transitions of other states": arrival(
        "", "must be 2 rows of 2 weights", process="mmpp", rate=1, states=[[1, 2], [2, 3]], transitions=[[0, 1]]
    ),
    "a state that follows itself": arrival(
        "", "row 1 must be 0 for staying", process="mmpp", rate=1, states=[[1, 2], [2, 3]], transitions=[[1, 1], [1, 0]]
    ),
    "a state that nothing leads to": arrival(
        "",
        "every state must lead to every other",
        process="mmpp",
        rate=1,
        states=[[1, 2], [2, 3], [3, 1]],
        transitions=[[0, 1, 0], [1, 0, 0], [1, 0, 0]],
    ),
    "a correlation of 2": chat("corr", "less than or equal to 1", corr=2),
    "a correlation of equal lengths": chat("", "corr needs lengths that vary", corr=0.5),
    "a prefix of nothing": chat("prefix.tokens", "greater than", prefix={"tokens": 0}),
    "no texts": chat("prefix.groups", "greater than", prefix={"tokens": 9, "groups": 0}),
    "neither classes nor preset": ({"requests": 5}, (), "give classes, a benchmark, or a preset: chat, code"),
    "an unknown distribution": chat("input", "'lognormal_pareto', 'empirical'", input={"dist": "zipf", "theta": 1}),
    "fixed outside": lengths("", "value 5 is outside", dist="fixed", value=5, max=4),
    "zero tokens": lengths("value", "greater than or equal to 1", dist="fixed", value=0),
    "half a token": lengths("value", "valid integer", dist="fixed", value=1.5),
    "uniform upside down": lengths("", "min 9 is above", dist="uniform", min=9, max=3),
    "uniform without end": lengths("max", "required", dist="uniform", min=9),
    "normal without spread": lengths("sd", "greater than", dist="normal", mean=9, sd=0),
    "normal far below 1": lengths("", "check the bounds", dist="normal", mean=-900, sd=5),
    "bounds upside down": lengths("", "min 9 is above", **LOGNORMAL, min=9, max=3),
    "bounds around nothing": lengths("", "at least 100000 tokens, fewer than 0.001", **LOGNORMAL, min=100_000),
    "half a lognormal": lengths("", "found median", dist="lognormal", median=5),
    "a mixed lognormal": lengths("", "found median, sigma", dist="lognormal", median=5, sigma=2),
    "p99 below the median": lengths("", "p99 4 must be above", dist="lognormal", median=5, p99=4),
    "a tail of all": lengths(
        "tail_share", "less than 1", **{**LOGNORMAL, "dist": "lognormal_pareto"}, tail_share=1.0, alpha=2
    ),
    "a tail beyond the bound": lengths(
        "",
        "the tail starts at 500",
        **{**LOGNORMAL, "dist": "lognormal_pareto"},
        tail_share=0.1,
        alpha=2,
        tail_from=500,
        max=400,
    ),
    "a tail cut to nothing": lengths(
        "",
        "less than 0.001 of the body or of the tail",
        **{**LOGNORMAL, "dist": "lognormal_pareto"},
        tail_share=0.1,
        alpha=0.01,
        tail_from=500,
        max=500,
    ),
    "empirical of nothing": lengths("", "quantiles and values", dist="empirical"),
    "empirical of both": lengths("", "quantiles and values", dist="empirical", values=[1], quantiles={0.0: 1, 1.0: 2}),
    "one quantile": lengths("", "at least two", dist="empirical", quantiles={0.5: 9}),
    "percent": lengths("", "p99 is 0.99", dist="empirical", quantiles={50: 9, 99: 20}),
    "falling quantiles": lengths("", "9 at 0.5, but 8 at 0.9", dist="empirical", quantiles={0.5: 9, 0.9: 8}),
    "no values": lengths("values", "at least 1 item", dist="empirical", values=[]),
    "values out of bounds": lengths("", "none of the values", dist="empirical", values=[5, 6], max=4),
    "a quantile twice": lengths("quantiles", "stands twice", dist="empirical", quantiles={"0.5": 9, 0.5: 10, 0.9: 11}),
    "a quantile in words": lengths(
        "quantiles.p50.[key]", "valid number", dist="empirical", quantiles={"p50": 9, "p99": 20}
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
