"""Claims 1, 2, 3 and 7: a handful of requests, whose steps can be counted by hand."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from docs.writers.claims.claim import Claim, ClaimResult, Table
from docs.writers.claims.runs import figure, percent, run, slots_key

HUNDRED = "claim-01-hundred-requests"
THREE = "claim-02-three-outputs"
FOUR = "claim-03-four-outputs"
SIX = "claim-07-six-requests-gpt2"

_SPREADS = {
    "50 each": "{dist: fixed, value: 50}",
    "1 to 99, even": "{dist: uniform, min: 1, max: 99}",
    "lognormal, CV 1": "{dist: lognormal, mean: 50, cv: 1}",
    "lognormal, CV 2": "{dist: lognormal, mean: 50, cv: 2}",
}
_SLOTS = (10, 42, 50, 100)
_SEEDS = 10


def _mean_steps(policy: str, spread: str, slots: int) -> float:
    keys = (f"workload.classes.0.output={_SPREADS[spread]}", slots_key(slots))
    seeds = _SEEDS if spread != "50 each" else 1  # no chance in it
    return float(np.mean([figure(run(HUNDRED, policy, *keys, f"seed={seed}"), "num_steps") for seed in range(seeds)]))


def _hundred() -> ClaimResult:
    steps = {
        (policy, spread, slots): _mean_steps(policy, spread, slots)
        for policy in ("static", "orca")
        for spread in _SPREADS
        for slots in _SLOTS
    }
    rows = [
        [spread, policy, *(f"{steps[policy, spread, slots]:.0f}" for slots in _SLOTS)]
        for spread in _SPREADS
        for policy in ("static", "orca")
    ]
    rows.append(["any", "no policy can do better than", *(f"{math.ceil(5000 / slots)}" for slots in _SLOTS)])
    widest = "lognormal, CV 1"
    return ClaimResult(
        {
            "static_equal": steps["static", "50 each", 10],
            "continuous_equal": steps["orca", "50 each", 10],
            "static_spread": steps["static", widest, 10],
            "continuous_spread": steps["orca", widest, 10],
            "ratio_spread": steps["static", widest, 10] / steps["orca", widest, 10],
            "ratio_wide": steps["static", "lognormal, CV 2", 10] / steps["orca", "lognormal, CV 2", 10],
            "ratio_even": steps["static", "1 to 99, even", 10] / steps["orca", "1 to 99, even", 10],
            "even_42": steps["orca", "1 to 99, even", 42],
            "equal_50": steps["orca", "50 each", 50],
            "slots_of_120": 5000 / 120,
        },
        [Table(["outputs", "policy", *(f"{slots} slots" for slots in _SLOTS)], rows, f"Steps, mean of {_SEEDS} seeds")],
    )


def _three() -> ClaimResult:
    static, alone = run(THREE, "static"), run(THREE, "orca")
    rows = static.records.rows
    slot_steps = int(np.dot(rows.running, rows.repeat))
    wasted = int(np.dot(rows.held, rows.repeat))
    many = tuple(f"workload.classes.{index}.arrival.rate=200" for index in range(3))
    queue = {policy: figure(run(THREE, policy, *many), "duration") for policy in ("static", "orca")}
    seconds = {"static": figure(static, "duration"), "orca": figure(alone, "duration")}
    table = [
        [
            "the three alone",
            f"{figure(static, 'num_steps'):.0f}",
            f"{figure(alone, 'num_steps'):.0f}",
            f"{seconds['static']:.2f}",
            f"{seconds['orca']:.2f}",
            percent(1 - seconds["orca"] / seconds["static"], 1),
        ],
        [
            "100 of each, at 200/s",
            f"{figure(run(THREE, 'static', *many), 'num_steps'):.0f}",
            f"{figure(run(THREE, 'orca', *many), 'num_steps'):.0f}",
            f"{queue['static']:.0f}",
            f"{queue['orca']:.0f}",
            percent(1 - queue["orca"] / queue["static"], 1),
        ],
    ]
    return ClaimResult(
        {
            "wasted_slot_steps": wasted,
            "slot_steps": slot_steps,
            "tail_utilisation": float((rows.running[-1] - rows.held[-1]) / rows.running[-1]),
            "whole_utilisation": 1 - wasted / slot_steps,
            "saved_alone": 1 - seconds["orca"] / seconds["static"],
            "saved_with_queue": 1 - queue["orca"] / queue["static"],
        },
        [Table(["requests", "steps, static", "steps, orca", "s, static", "s, orca", "time saved"], table)],
    )


def _four() -> ClaimResult:
    static, whole = run(FOUR, "static"), run(FOUR, "static", "engine.stream=false")
    rows, requests = static.records.rows, static.records.requests
    steps = int(rows.repeat.sum())
    last = {
        kind: result.records.requests.last_token_s for kind, result in (("streams", static), ("comes whole", whole))
    }
    table = [
        [
            str(requests.output_tokens[row]),
            percent(1 - requests.output_tokens[row] / steps, 1),
            f"{last['streams'][row]:.2f}",
            f"{last['comes whole'][row]:.2f}",
        ]
        for row in range(4)
    ]
    return ClaimResult(
        {
            "idle_first": 1 - int(requests.output_tokens[0]) / steps,
            "idle_all": figure(static, "wasted_slot_fraction"),
            "client_wait": float(last["comes whole"][0] / last["streams"][0]),
        },
        [Table(["output", "slot idle", "answer after, s (stream: true)", "answer after, s (stream: false)"], table)],
    )


_LENGTHS: Mapping[str, Sequence[int]] = {
    "as in the file": (20, 40, 60, 80, 120, 280),
    "all alike": (100,) * 6,
    "one long": (2, 2, 2, 2, 2, 590),
}
_COSTS = {
    "as in the file": (0.025, 0.00125),
    "weights only": (0.025, 0.0),
    "computing only": (0.0, 0.00125),
}
_BATCHES = (1, 2, 3, 6)


def _six() -> ClaimResult:
    rows = []
    ratios: dict[tuple[str, str, int], float] = {}
    for lengths, outputs in _LENGTHS.items():
        for cost, (base_s, per_token_s) in _COSTS.items():
            keys = (
                *(f"workload.classes.{index}.output.value={value}" for index, value in enumerate(outputs)),
                f"cost.base_s={base_s}",
                f"cost.per_token_s={per_token_s}",
            )
            ragged = figure(run(SIX, "orca", *keys), "duration")
            static = {batch: figure(run(SIX, "static", *keys, slots_key(batch)), "duration") for batch in _BATCHES}
            ratios |= {(lengths, cost, batch): static[batch] / ragged for batch in _BATCHES}
            found = [f"{static[batch]:.1f} ({static[batch] / ragged:.2f})" for batch in _BATCHES]
            rows.append([lengths, cost, f"{ragged:.1f}", *found])
    head = ["outputs", "cost", "ragged", "one at a time", *(f"static, {batch}" for batch in _BATCHES[1:])]
    return ClaimResult(
        {
            "said_ratio": 61.80 / 9.54,
            "most": max(ratios.values()),
            "usual": ratios["as in the file", "as in the file", 6],
            "usual_alone": ratios["as in the file", "as in the file", 1],
        },
        [Table(head, rows, "Seconds, and their ratio to ragged batching of all six")],
    )


CLAIMS = (
    Claim(
        1,
        HUNDRED,
        "wrong",
        "at 10 slots 5,000 tokens take 500 steps under any policy; {ratio_spread:.1f}x at CV 1",
        "Continuous batching saves steps when lengths differ. With the same 10 slots it takes {ratio_even:.1f} times"
        " fewer steps for lengths spread evenly, {ratio_spread:.1f} times fewer for a coefficient of variation (CV)"
        " of 1, and {ratio_wide:.1f} times fewer for a CV of 2. With 50 slots and equal lengths it takes"
        " {equal_50:.0f} steps.",
        "5,000 tokens in 120 steps need at least {slots_of_120:.1f} slots, not 10, and no answer may be longer than"
        " 120 tokens. With 42 slots and lengths from 1 to 99 it takes {even_42:.0f} steps. Static batching needs only"
        " 500 steps if all lengths are equal, and then continuous batching needs {continuous_equal:.0f}. If lengths"
        " vary, static batching needs {static_spread:.0f}. The claim compares static batching at its best, with 10"
        " slots, with continuous batching on four times as many.",
        _hundred,
    ),
    Claim(
        2,
        THREE,
        "right, but it says little",
        "{wasted_slot_steps:.0f} of {slot_steps:.0f} slot-steps; with no request waiting {saved_alone:.1%} of the time",
        "The count is right: {wasted_slot_steps:.0f} of {slot_steps:.0f} slot-steps are wasted. In the last 600 steps"
        " one slot of three works ({tail_utilisation:.1%}). Over the whole batch utilisation is"
        " {whole_utilisation:.1%}. If other requests wait, all of the waste can be saved: {saved_with_queue:.0%} of"
        " the time.",
        "A wasted slot is not wasted time. Alone, the three requests take 1,000 steps under any policy. A decode step"
        " for one costs nearly as much as a step for three, because both read all the weights. Leaving early saves"
        " {saved_alone:.1%}.",
        _three,
    ),
    Claim(
        3,
        FOUR,
        "right, of the slot",
        "{idle_first:.0%} of the slot's time; over the batch {idle_all:.1%}",
        "The slot of request 1 is held for 500 steps and used for 50: idle for {idle_first:.0%}. Over all four it is"
        " {idle_all:.1%}.",
        "It is the slot that idles. If tokens stream, the client has its answer after 50 steps. Only if answers are"
        " returned with the batch (`stream: false`) does the client wait too, {client_wait:.1f} times as long.",
        _four,
    ),
    Claim(
        7,
        SIX,
        "not by scheduling",
        "at most {most:.1f}x for any lengths, batches and costs; {usual:.1f}x for ordinary ones",
        "Six requests with the outputs of this file gain {usual:.1f} times over one static batch of 6, and"
        " {usual_alone:.1f} times over one at a time.",
        "{said_ratio:.2f} times is more than six requests can gain by scheduling. Static batching takes at most six"
        " times the steps (one request at a time, all of equal length). It computes at most six times the tokens"
        " (five requests padded to the length of one). So it takes at most six times as long under any cost of steps"
        " and tokens; the most we find is {most:.1f}. The rest must come from the implementations. For example, a"
        " static loop without a KV cache computes the whole prefix again for every token, and loses far more than"
        " that. The claim does not state lengths or machine. The cost here is an assumption, and the bound does not"
        " depend on it.",
        _six,
    ),
)
