"""The `workload:` of a scenario that is drawn: classes, arrivals and lengths of their requests, presets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Unit, doc
from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from scenarios import random_draws
from scenarios.schema.arrival import MeanRate, Rate
from scenarios.schema.arrivals import process_at
from scenarios.schema.arrivals.closed_loop import ClosedLoop
from scenarios.schema.base import Strict, later
from scenarios.schema.distributions import Fixed, Length, LengthConfig
from scenarios.schema.source.hints import refusal
from simulator.goes_with import IMAGES, SESSIONS, between

# Traffic like that of the public traces, by name: what their published figures say, as classes of a workload.
#
# Arrivals and lengths are those of a trace as a whole: rates, coefficients of variation, rank correlations and
# quantiles over all of its rows. Between two quantiles lengths are taken as evenly spread, so the means come out a
# little high: the inputs' by 3 to 6 %, the outputs' by 1 to 4 % (code 14 %, multi-tenant 10 %). Of the reasoning
# traffic only fits are published, and so it is made of these. A preset is written in the keys of a scenario.
#
# `coding-agent` is made of TraceLab's tables (Zhu et al., arXiv:2606.30560 and tracelab.cs.washington.edu, 357,161
# rounds of Claude Code and Codex, CC BY 4.0), both agents weighted by their rounds. Lognormal, by median and p99:
# outputs (mean 513, published 523; p90 1,160, published 1,230), and appended tokens where 64,000 to 128,000 are
# cached (mean 2,410, published 2,350; p90 5,370, published 5,340). Appended tokens count the last answer again
# where it is sent back: new tokens are high by up to its length. Tools and people, by median and p90: p99 of 300 s
# and three hours; people's published p99 is 14 hours. Turns and steps by quantiles; steps come out at a mean of 11,
# published 8.8. The first round of the published example finds 27,217 tokens cached: the shared text. A session
# ends before a context of 131,072 tokens, while theirs go on after compacting: 21 rounds and 2.9 tasks a session,
# published 83 and 9.2. With all of a session cached, 97 % of prompt tokens are hits, published 96 %.

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


if TYPE_CHECKING:
    from scenarios.schema.classes import ImagesConfig, LoraConfig, Prefix, SessionConfig
    from scenarios.schema.client import AnyArrival, ArrivalConfig, BenchmarkConfig, ClientConfig, Predictor
else:
    AnyArrival = later("scenarios.schema.client:AnyArrival", process_at)
    BenchmarkConfig = later("scenarios.schema.client:BenchmarkConfig")
    ClientConfig = later("scenarios.schema.client:ClientConfig")
    ImagesConfig = later("scenarios.schema.classes:ImagesConfig")
    LoraConfig = later("scenarios.schema.classes:LoraConfig")
    Predictor = later("scenarios.schema.client:Predictor")
    Prefix = later("scenarios.schema.classes:Prefix")
    SessionConfig = later("scenarios.schema.classes:SessionConfig")

MOST_REQUESTS = 50_000_000  # a workload is held in memory: some 50 bytes a request here, more in the simulator
Positive = Annotated[float, Field(gt=0)]
PRESET_REQUESTS = 2000  # of a preset that is given no end
Seconds = Annotated[float, Field(ge=1e-6, le=1e9)]
Correlation = Annotated[float, Field(ge=-1, le=1)]


SharedArrival = Annotated[
    Annotated[AnyArrival, Tag("<process>")] | Annotated[MeanRate, Tag("<rate>")],
    Discriminator(lambda value: "<rate>" if isinstance(value, MeanRate) or _is_rate_alone(value) else "<process>"),
]


def _is_rate_alone(value: object) -> bool:
    return isinstance(value, Mapping) and [*value] == ["rate"]


class ClassConfig(Strict):
    """Requests of one kind, with an `arrival` process of its own or a `share` of the workload's."""

    name: Annotated[str, Field(min_length=1), doc("name of the class, in results and in `engine.class_weights`")]
    share: Annotated[Positive | None, doc("weight in the workload's arrivals; null: 1")] = None
    arrival: Annotated[AnyArrival | None, doc("arrivals of this class alone; null: a share of the workload's")] = None
    input: Annotated[LengthConfig, doc("prompt lengths"), Unit("tokens")]
    output: Annotated[LengthConfig, doc("output lengths"), Unit("tokens")]
    corr: Annotated[Correlation, doc("rank correlation of a request's input and output (Spearman's rho)")] = 0.0
    prefix: Annotated[Prefix | None, doc("text at the start of each prompt that other prompts share; null: none")] = (
        None
    )
    lora: Annotated[LoraConfig | None, doc("adapters that its requests ask for; null: the model itself")] = None
    images: Annotated[ImagesConfig | None, doc("images in its prompts; null: none")] = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), doc("a smaller number is served first")] = 0
    max_tokens: Annotated[Length | None, doc("cap on an output; null: the workload's, or the largest output")] = None
    session: Annotated[
        SessionConfig | None, doc("sessions, one of which starts at each arrival; null: single requests")
    ] = None
    client: Annotated[ClientConfig | None, doc("timeouts and retries; null: the workload's")] = None

    @model_validator(mode="after")
    def _ranks_to_correlate(self) -> Self:
        if self.images is not None and self.session is not None:
            row = between(IMAGES, SESSIONS)
            raise refusal(row.message, "give one of images and session", key="images")
        _check_corr(self.corr, self.input, self.output)
        return self

    def complete(self, *, shares: bool) -> "tuple[ClassConfig, ...]":
        """The class itself; what a preset is spelt out to."""
        return (self,)


class PresetClass(Strict):
    """Requests like those of a public trace. The preset gives arrivals and lengths; a key beside it replaces its own.

    A preset of several tenants makes a class of each, `NAME-01`, `NAME-02`, ... Where the workload has an `arrival`
    that its classes share, the preset gives the lengths alone, unless the class has a `rate`.
    """

    preset: Annotated[PresetName, doc("name of published traffic that the class follows")]
    name: Annotated[str, Field(min_length=1), doc("name of the class; of several tenants, what their names begin with")]
    rate: Annotated[Rate | None, doc("mean rate; null: that of the trace"), Unit("requests/s")] = None
    share: Annotated[Positive | None, doc("weight in the workload's arrivals; null: 1")] = None
    arrival: Annotated[AnyArrival | None, doc("other arrivals; null: the preset's")] = None
    input: Annotated[LengthConfig | None, doc("other prompt lengths; null: the preset's"), Unit("tokens")] = None
    output: Annotated[LengthConfig | None, doc("other output lengths; null: the preset's"), Unit("tokens")] = None
    corr: Annotated[
        Correlation | None, doc("rank correlation of input and output (Spearman's rho); null: the preset's")
    ] = None
    prefix: Annotated[Prefix | None, doc("text at the start of each prompt that other prompts share; null: none")] = (
        None
    )
    lora: Annotated[LoraConfig | None, doc("adapters that its requests ask for; null: the model itself")] = None
    images: Annotated[ImagesConfig | None, doc("images in its prompts; null: none")] = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), doc("a smaller number is served first")] = 0
    max_tokens: Annotated[Length | None, doc("cap on an output; null: the workload's, or the largest output")] = None
    session: Annotated[
        SessionConfig | None, doc("sessions, one of which starts at each arrival; null: single requests")
    ] = None
    client: Annotated[ClientConfig | None, doc("timeouts and retries; null: the workload's")] = None

    def complete(self, *, shares: bool) -> "tuple[ClassConfig, ...]":
        """Return the classes that the preset stands for, in a workload whose classes share its arrivals or not."""
        preset = PRESETS[self.preset]
        given = {key: getattr(self, key) for key in self.model_fields_set & set(ClassConfig.model_fields)}
        lengths = {**preset.lengths, **{key: value for key, value in given.items() if value is not None}}
        if self.corr is None and "fixed" in {getattr(lengths[key], "dist", None) for key in ("input", "output")}:
            lengths["corr"] = 0.0
        found = []
        for part in preset.parts:
            own: dict[str, object] = {"name": f"{self.name}{part.ending}"}
            if self.arrival is None and shares and self.rate is None:
                own["share"] = part.share * (self.share or 1.0)
            elif self.arrival is None:
                rate = self.rate or preset.rate
                assert rate is not None, "the validator let a preset without a rate pass"
                own["arrival"] = _at_mean_rate(part.arrival, part.share * rate)
            found.append(ClassConfig.model_validate({**lengths, **own}))
        return tuple(found)

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if self.rate is not None and self.arrival is not None:
            raise ValueError("give one of rate and arrival: an arrival has a rate of its own")
        if self.rate is not None and self.share not in (None, 1.0):
            raise ValueError("give one of share and rate: a class with a rate takes no share of the workload's")
        if self.arrival is not None and len(PRESETS[self.preset].parts) > 1:
            raise ValueError(f"each tenant of {self.preset} has its own arrival; give rate, that of all of them")
        if self.corr is not None:
            _check_corr(self.corr, self.input, self.output)
        return self


def _check_corr(corr: float, *lengths: LengthConfig | None) -> None:
    if corr != 0 and any(isinstance(each, Fixed) for each in lengths):
        raise ValueError("corr needs lengths that vary; with dist: fixed all are equal")


def _at_mean_rate(arrival: Mapping[str, Any], rate: float) -> "ArrivalConfig":
    """A preset's arrivals with this mean rate."""
    alike = _arrivals().validate_python(arrival)
    return alike.model_copy(update={"rate": alike.rate * rate / alike.mean_rate})


@cache
def _arrivals() -> "TypeAdapter[ArrivalConfig]":
    from scenarios.schema.client import ArrivalConfig

    return TypeAdapter(ArrivalConfig)


AnyClass = Annotated[
    Annotated[ClassConfig, Tag("<class>")] | Annotated[PresetClass, Tag("<preset>")],
    Discriminator(lambda value: "<preset>" if _preset_of(value) is not None else "<class>"),
]


def _preset_of(value: object) -> object:
    return value.get("preset") if isinstance(value, Mapping) else getattr(value, "preset", None)


class GeneratedWorkload(Strict):
    """A workload that is drawn rather than read. Exactly one of `requests` and `duration_s`.

    Its requests are of `classes`; or `preset` and `rate` say it all: `{preset: chat, rate: 6}` is short for one class
    of this name (`tenant-01` to `tenant-50` for `multi-tenant`), with 2,000 requests unless `requests` or `duration_s`
    says otherwise. Or `benchmark` says all: the client of a public benchmark.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [{"required": ["classes"]}, {"required": ["preset"]}, {"required": ["benchmark"]}],
            "dependentRequired": {"rate": ["preset"]},
        }
    )

    preset: Annotated[PresetName | None, doc("name of published traffic, instead of classes")] = None
    rate: Annotated[
        Rate | None,
        doc("mean rate of the preset, all its classes together; null: that of the trace"),
        Unit("requests/s"),
    ] = None
    benchmark: Annotated[BenchmarkConfig | None, doc("client of a public benchmark, instead of classes")] = None
    requests: Annotated[
        Annotated[int, Field(ge=1, le=MOST_REQUESTS)] | None, doc("arrivals to generate"), Unit("requests")
    ] = None
    duration_s: Annotated[Seconds | None, doc("time over which requests arrive; give this or `requests`")] = None
    arrival: Annotated[
        SharedArrival | None,
        doc("arrivals that classes share if they have no own; a rate alone scales the arrivals of all classes"),
    ] = None
    classes: Annotated[
        Annotated[tuple[AnyClass, ...], Field(strict=False, min_length=1)] | None,
        doc("kinds of requests, one mapping each; null: those of the preset"),
    ] = None
    max_tokens: Annotated[Length | None, doc("cap on an output, if its class has none")] = None
    client: Annotated[ClientConfig | None, doc("timeouts and retries where a class has none; null: none")] = None
    predictor: Annotated[Predictor | None, doc("predictions of output lengths; null: none")] = None

    def all_classes(self) -> tuple[ClassConfig, ...]:
        """The classes with their presets spelt out."""
        entries: tuple[AnyClass, ...] = self.classes or ()
        if self.benchmark is not None:
            entries = (ClassConfig.model_validate(self.benchmark.class_keys()),)
        if self.preset is not None:
            entries = (PresetClass(name=PRESETS[self.preset].class_name, preset=self.preset, rate=self.rate),)
        shares = self.shared is not None
        return tuple(part for entry in entries for part in entry.complete(shares=shares))

    @property
    def shared(self) -> "AnyArrival | None":
        """The arrivals that classes without their own share."""
        if self.benchmark is not None:
            return self.benchmark.users()
        return None if isinstance(self.arrival, MeanRate) else self.arrival

    def plain(self) -> "GeneratedWorkload":
        """The workload with its benchmark's client spelt out."""
        if self.benchmark is None:
            return self
        spelt = {"requests": self.benchmark.requests, "arrival": self.shared, "classes": self.all_classes()}
        return self.model_copy(update={**spelt, "benchmark": None})

    @model_validator(mode="before")
    @classmethod
    def _preset_has_an_end(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("preset") is None:
            return data
        endless = data.get("requests") is None and data.get("duration_s") is None
        return {**data, "requests": PRESET_REQUESTS} if endless else data

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if self.benchmark is not None:
            for key in ("preset", "rate", "requests", "duration_s", "arrival", "classes"):
                if getattr(self, key) is not None:
                    raise refusal("the benchmark says all that its client sends", "keep one of the two", key=key)
            return self
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("give exactly one of requests and duration_s")
        self._check_preset()
        self._check_shares()
        classes = self.all_classes()
        names = [entry.name for entry in classes]
        if len(set(names)) < len(names):
            raise self._twins()
        own = [entry.arrival for entry in classes if entry.arrival is not None]
        processes = own if self.shared is None else [*own, self.shared]
        loops = [process for process in processes if isinstance(process, ClosedLoop)]
        if self.requests is not None and loops and len(processes) > 1:
            raise refusal(
                "requests: how many of them a closed loop issues beside other arrivals depends on the policy",
                "give duration_s",
                key="requests",
            )
        endless = [process for process in processes if isinstance(process, ClosedLoop) or not process.ends]
        if self.requests is not None and not endless:
            raise ValueError("requests: every profile ends at 0, the number may never be reached; give duration_s")
        if self.shared is not None and len(own) == len(classes):
            raise ValueError("arrival: every class has its own, so the workload's is not used")
        if self.requests is None:
            self._check_caps(classes)
        return self

    def _check_caps(self, classes: tuple[ClassConfig, ...]) -> None:
        """A closed loop without a number of requests draws them as it goes: their cap must be known beforehand."""
        for index, entry in enumerate(classes):
            if isinstance(entry.arrival or self.shared, ClosedLoop) and (
                entry.max_tokens is None and self.max_tokens is None and entry.output.largest is None
            ):
                alike = self.classes is not None and len(self.classes) == len(classes)
                raise refusal(
                    f"the closed loop of class {entry.name} must know how long an answer can be, as it has no end in"
                    " requests",
                    "give output: {max: ...} or max_tokens",
                    key=f"classes.{index}.output" if alike else "duration_s",
                )

    def _twins(self) -> PydanticCustomError:
        names: set[str] = set()
        for index, entry in enumerate(self.classes or ()):
            for part in entry.complete(shares=self.shared is not None):
                if part.name in names:
                    message = f"two classes are called {part.name!r}"
                    return refusal(message, "names must differ", key=f"classes.{index}.name")
                names.add(part.name)
        raise AssertionError("no two classes have the same name")

    def _check_preset(self) -> None:
        if self.preset is None:
            if self.rate is not None:
                raise ValueError("rate is that of a preset; classes have theirs in arrival: {process: ..., rate: ...}")
            if not self.classes:
                raise ValueError(f"give classes, a benchmark, or a preset: {', '.join(PRESETS)}")
            return
        for key in ("classes", "arrival"):
            if getattr(self, key):
                hint = f"a class may have one: classes: [{{name: mine, preset: {self.preset}}}]"
                raise refusal("the preset says what its classes and their arrivals are", hint, key=key)
        _check_rate(self.preset, self.rate, "")

    def _check_shares(self) -> None:
        for index, entry in enumerate(self.classes or ()):
            own_rate = entry.arrival is not None or (isinstance(entry, PresetClass) and entry.rate is not None)
            if not own_rate and self.shared is None:
                if not isinstance(entry, PresetClass):
                    raise refusal(
                        f"class {entry.name!r} has no arrival, and the workload has none to share",
                        "give arrival: {process: ..., rate: ...} to the class, or to the workload for all its classes",
                        key=f"classes.{index}",
                    )
                _check_rate(entry.preset, None, f"classes.{index}.")
            if (own_rate or self.shared is None) and entry.share not in (None, 1.0):
                raise refusal(
                    f"a share of {entry.share:g} would do nothing: class {entry.name!r} has its own arrival, and all of"
                    " its rate",
                    "change the rate, or put arrival at the workload for its classes to share",
                    key=f"classes.{index}.share",
                )


def _check_rate(preset: PresetName, rate: float | None, place: str) -> None:
    if rate is None and PRESETS[preset].rate is None:
        known = ", ".join(f"{name} {each.rate:g}" for name, each in PRESETS.items() if each.rate is not None)
        hint = f"give rate, in requests/s; those of the others: {known}"
        raise refusal(f"no rate was published for the preset {preset}", hint, key=f"{place}preset")
