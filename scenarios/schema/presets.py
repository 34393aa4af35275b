"""Traffic like that of the public traces, by name: what their published figures say, as classes of a workload.

Arrivals and lengths are those of a trace as a whole: rates, coefficients of variation, rank correlations and quantiles
over all of its rows. Between two quantiles lengths are taken as evenly spread, so the means come out a little high: the
inputs' by 3 to 6 %, the outputs' by 1 to 4 % (code 14 %, multi-tenant 10 %). Of the reasoning traffic only fits are
published, and so it is made of these. A preset is written in the keys of a scenario.

`coding-agent` is made of TraceLab's tables (Zhu et al., arXiv:2606.30560 and tracelab.cs.washington.edu, 357,161 rounds
of Claude Code and Codex, CC BY 4.0), both agents weighted by their rounds. Lognormal, by median and p99: outputs (mean
513, published 523; p90 1,160, published 1,230), and appended tokens where 64,000 to 128,000 are cached (mean 2,410,
published 2,350; p90 5,370, published 5,340). Appended tokens count the last answer again where it is sent back: new
tokens are high by up to its length. Tools and people, by median and p90: p99 of 300 s and three hours; people's
published p99 is 14 hours. Turns and steps by quantiles; steps come out at a mean of 11, published 8.8. The first round
of the published example finds 27,217 tokens cached: the shared text. A session ends before a context of 131,072 tokens,
while theirs go on after compacting: 21 rounds and 2.9 tasks a session, published 83 and 9.2. With all of a session
cached, 97 % of prompt tokens are hits, published 96 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scenarios import random_draws

PresetName = Literal["chat", "code", "long-context", "reasoning", "multi-tenant", "coding-agent"]


@dataclass(frozen=True, slots=True)
class Part:
    """One source of a preset's requests: what its name ends with, its share of the rate, its arrivals.

    `arrival` has the rate 1, as a scenario would write it; the mean rate is scaled to what is asked for.
    """

    ending: str
    share: float
    arrival: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Preset:
    """A published trace: the source of its figures, the name of its class, its own rate, its arrivals, its lengths.

    `rate` is in requests per second, None where none was published; `lengths` are the keys `input`, `output` and
    `corr` of a class.
    """

    title: str
    class_name: str
    rate: float | None
    parts: Sequence[Part]
    lengths: Mapping[str, Any]


def _whole(**arrival: Any) -> Sequence[Part]:
    return (Part("", 1.0, {"rate": 1.0, **arrival}),)


def _empirical(*lengths: float) -> dict[str, Any]:
    """Lengths at the quantiles of the page of traces, least and largest included."""
    quantiles = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
    return {"dist": "empirical", "quantiles": dict(zip(quantiles, lengths, strict=True))}


# Azure's conversations: by the minute their rate went from 45 % below its mean to 50 % above it within the hour, one
# swell and the noise of arrivals on top (index of dispersion over 60 s: 16). A sine of +-30 % has that dispersion. It
# passes its mean after 200 s, so that a run of a few minutes has about the rate that was asked for.
_DRIFT = {"kind": "diurnal", "peak_to_trough": 1.3 / 0.7, "period_s": 3600.0, "peak_s": 1100.0}

TENANTS = 50


def _tenants() -> Sequence[Part]:
    """ServeGen's largest model: 16, 30 and 63 % of the requests from the first 1, 3 and 10 of its clients.

    Between these ranks the cumulative share is a power of the rank, which makes Zipf-like shares. The clients' CVs are
    lognormal around 1.2 with 90 % below 6, spread over the ranks by multiples of the golden ratio, so that neither
    the large nor the small have the bursty ones alone.
    """
    ranks = np.arange(1, TENANTS + 1)
    cumulative = np.exp(np.interp(np.log(ranks), np.log([1, 3, 10, TENANTS]), np.log([0.16, 0.30, 0.63, 1.0])))
    shares = np.diff(cumulative, prepend=0.0)
    sigma = math.log(6.0 / 1.2) / random_draws.quantile(0.9)
    variations = 1.2 * np.exp(sigma * random_draws.inverse_cdf(np.mod(ranks * (math.sqrt(5.0) - 1.0) / 2.0, 1.0)))
    return tuple(
        Part(f"-{rank:02d}", share, {"process": "gamma", "rate": 1.0, "cv": variation})
        for rank, share, variation in zip(ranks.tolist(), shares.tolist(), variations.tolist(), strict=True)
    )


PRESETS: Mapping[PresetName, Preset] = {
    "chat": Preset(
        "conversations of Azure's LLM service, 2023: medium prompts and answers, a rate that drifts",
        "chat",
        5.53,
        _whole(process="gamma", cv=1.1, profile=_DRIFT),
        {
            "input": _empirical(2, 29, 181, 207, 396, 1020, 1189, 2734.5, 4083, 4142, 6179.2, 14050),
            "output": _empirical(7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 954, 1000),
            "corr": 0.07,
        },
    ),
    "code": Preset(
        "code completions of Azure's LLM service, 2023: long prompts, short answers, bursts and silence",
        "code",
        2.57,
        _whole(process="onoff", on_s=23.0, off_s=53.0),
        {
            "input": _empirical(3, 17, 75, 147, 578, 1469, 2744.5, 5187.6, 7303.3, 7436, 7437, 7437),
            "output": _empirical(6, 6, 6, 7, 9, 13, 24, 55, 90, 251.5, 825.3, 1899),
        },
    ),
    "long-context": Preset(
        "conversations of Mooncake's trace (Kimi), 2024: prompts of thousands of tokens, a few of a hundred thousand",
        "long-context",
        3.4,
        _whole(process="poisson"),
        {
            "input": _empirical(891, 894, 901, 964, 2306.5, 6909, 15367, 27367, 39550.5, 85400.4, 121301, 126195),
            "output": _empirical(1, 3, 10, 24, 156.5, 350, 472, 597, 698, 1118.5, 2000, 2000),
            "corr": 0.07,
        },
    ),
    "reasoning": Preset(
        "a reasoning model of ServeGen's tables, 2025: short prompts, long answers, heavy tails of both",
        "reasoning",
        None,
        _whole(process="poisson"),
        {
            "input": {
                "dist": "lognormal_pareto",
                "mu": 5.4,
                "sigma": 1.4,
                "tail_share": 0.05,
                "alpha": 1.0,
                "tail_from": 1_900.0,
                "max": 44_000,
            },
            "output": {
                "dist": "lognormal_pareto",
                "mu": 6.4,
                "sigma": 0.7,
                "tail_share": 0.05,
                "alpha": 2.0,
                "tail_from": 1_600.0,
                "max": 24_000,
            },
        },
    ),
    "multi-tenant": Preset(
        f"{TENANTS} tenants with shares and burstiness as of the clients of ServeGen's largest model, 2025",
        "tenant",
        4.89,
        _tenants(),
        {
            "input": _empirical(13, 61, 77, 257.8, 575, 636, 844, 1517, 2274, 3309.9, 5864.1, 12434),
            "output": _empirical(1, 1, 1, 3, 10, 30, 68, 147, 262.1, 663.2, 1324.6, 2902),
            "corr": 0.29,
        },
    ),
    "coding-agent": Preset(
        "sessions of coding agents, TraceLab's, 2025 and 2026: long contexts that grow, short answers, tools, people",
        "coding-agent",
        None,
        _whole(process="poisson"),
        {
            "input": {"dist": "lognormal", "median": 795, "p99": 25_500, "max": 100_000},
            "output": {"dist": "lognormal", "median": 210, "p99": 4_700, "max": 32_000},
            "prefix": {"tokens": 27_217},
            "session": {
                "turns": {"dist": "empirical", "quantiles": {0.5: 1, 0.9: 18, 0.99: 137}},
                "steps": {"dist": "empirical", "quantiles": {0.25: 1, 0.5: 2, 0.9: 21, 0.99: 87}},
                "think_time_s": {"dist": "lognormal", "median_s": 84.0, "p99_s": 11_000.0},
                "tool_time_s": {"dist": "lognormal", "median_s": 0.3, "p99_s": 300.0},
                "max_context_tokens": 131_072,
            },
        },
    ),
}
