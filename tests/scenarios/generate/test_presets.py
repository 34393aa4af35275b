"""The presets against the figures that they are made from, and against the rows of the traces where these are here."""

from typing import Any, get_args

import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy import stats

import scenarios
from scenarios.generate import GeneratedWorkload, generate
from scenarios.generate.arrivals import expected_arrivals
from scenarios.schema.arrivals.closed_loop import ClosedLoop
from scenarios.schema.arrivals.gamma import Gamma
from scenarios.schema.client import ArrivalConfig
from scenarios.schema.distributions import LogNormalPareto
from scenarios.schema.workload import PRESETS, ClassConfig, PresetName
from scenarios.traces import read_trace
from scenarios.traces.options import TraceOptions
from simulator.errors import InputError
from simulator.workload import Workload
from tests.shared_data import shared

SEEDS = range(20)
ARRIVAL: TypeAdapter[ArrivalConfig] = TypeAdapter(ArrivalConfig)
# trace of the shared data, and the preset made of its figures
TRACES = {
    "chat": "AzureLLMInferenceTrace_conv.csv.gz",
    "code": "AzureLLMInferenceTrace_code.csv.gz",
    "long-context": "mooncake_conversation_trace.jsonl.gz",
    "multi-tenant": "servegen_mlarge_derived_1h.csv.gz",
}


def draw(seed: int = 0, **keys: Any) -> Workload:
    return generate(GeneratedWorkload.model_validate(keys), seed)


def arrival_of(entry: ClassConfig) -> ArrivalConfig:
    """A class's own arrivals, which are of an open process."""
    assert entry.arrival is not None
    assert not isinstance(entry.arrival, ClosedLoop)
    return entry.arrival


def classes(**keys: Any) -> tuple[ClassConfig, ...]:
    return GeneratedWorkload.model_validate(keys).all_classes()


def dispersion(workload: Workload, window_s: float, until_s: float) -> float:
    counts = np.histogram(workload.arrival_s, bins=int(until_s / window_s), range=(0, until_s))[0]
    return float(counts.var() / counts.mean())


def test_every_preset_has_a_name_in_the_schema() -> None:
    assert get_args(PresetName) == tuple(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_rate_asked_for_is_the_rate_over_time(preset: str) -> None:
    """Expected arrivals over whole periods of every profile: to the last digits."""
    for entry in (
        classes(preset=preset, rate=7.5),
        classes(requests=9, classes=[{"name": "a", "preset": preset, "rate": 7.5}]),
    ):
        expected = sum(expected_arrivals(arrival_of(each), 36_000) for each in entry)
        assert expected == pytest.approx(7.5 * 36_000)
    rate = PRESETS[preset].rate  # type: ignore[index] # one of its keys
    if rate is not None:
        (first, *_) = classes(preset=preset)
        assert sum(arrival_of(each).mean_rate for each in classes(preset=preset)) == pytest.approx(rate)
        assert first.share is None


@pytest.mark.parametrize("preset", TRACES)
def test_lengths_are_those_of_the_trace(preset: str) -> None:
    """Every row of the trace against many drawn: the largest distance of the CDFs, and the rank correlation."""
    trace = read_trace(shared("traces") / TRACES[preset], TraceOptions())
    drawn = draw(preset=preset, requests=200_000, rate=1.0)
    for column in ("input_tokens", "output_tokens"):
        real, ours = getattr(trace, column), getattr(drawn, column)
        for q in (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99):
            assert np.quantile(ours, q) == pytest.approx(np.quantile(real, q), rel=0.05, abs=1), (column, q)
        assert ours.min() == pytest.approx(real.min(), abs=1)
        assert ours.max() == pytest.approx(real.max(), rel=0.02)
        assert ours.mean() == pytest.approx(real.mean(), rel=0.15)
    found = stats.spearmanr(drawn.input_tokens, drawn.output_tokens).statistic
    assert found == pytest.approx(stats.spearmanr(trace.input_tokens, trace.output_tokens).statistic, abs=0.025)
    assert PRESETS[preset].rate == pytest.approx(len(trace) / trace.arrival_s[-1], rel=0.005)  # type: ignore[index] # a key


def test_chat_drifts_as_the_trace_does() -> None:
    """By the minute 191 to 507 requests around 332, IDC of 1.4 over a second, 3.9 over 10 s, 16 over a minute."""
    hours = [draw(seed, preset="chat", duration_s=3600) for seed in SEEDS]
    for window_s, published in ((1, 1.39), (10, 3.86), (60, 16.1)):
        found = [dispersion(hour, window_s, 3600) for hour in hours]
        assert np.mean(found) == pytest.approx(published, rel=0.25), window_s
    minutes = [np.histogram(hour.arrival_s, bins=60, range=(0, 3600))[0] for hour in hours]
    assert np.mean([each.min() for each in minutes]) == pytest.approx(191, rel=0.1)
    assert np.mean([each.max() for each in minutes]) == pytest.approx(507, rel=0.1)
    gaps = [np.diff(hour.arrival_s) for hour in hours]
    assert np.mean([each.std() / each.mean() for each in gaps]) == pytest.approx(1.094, rel=0.06)


def test_chat_starts_at_about_its_mean_rate() -> None:
    """A run of a few minutes gets the rate that was asked for, though the rate drifts over the hour."""
    for requests in (1000, 2000, 3000):
        rates = [requests / draw(seed, preset="chat", rate=6, requests=requests).arrival_s[-1] for seed in SEEDS]
        assert np.mean(rates) == pytest.approx(6, rel=0.08)


def test_code_is_on_and_off_as_the_trace_is() -> None:
    """12 of 57 minutes without a request, a peak minute of 4.2 times the mean, IDC of 164 over a minute."""
    hours = [draw(seed, preset="code", duration_s=3420) for seed in SEEDS]
    minutes = [np.histogram(hour.arrival_s, bins=57, range=(0, 3420))[0] for hour in hours]
    assert np.mean([np.count_nonzero(each == 0) for each in minutes]) == pytest.approx(12, abs=3)
    assert np.mean([each.max() / each.mean() for each in minutes]) == pytest.approx(4.2, rel=0.3)
    assert np.mean([dispersion(hour, 60, 3420) for hour in hours]) == pytest.approx(164, rel=0.3)
    (entry,) = classes(preset="code")
    assert entry.arrival is not None
    assert arrival_of(entry).rate == pytest.approx(8.3, rel=0.03)  # while on


def test_coding_agents_are_as_published() -> None:
    """Outputs of 523 in the mean and 1,230 at p90; 96 % of prompt tokens cached; 2,350 appended in the mean."""
    drawn = draw(preset="coding-agent", rate=1, requests=20_000)
    first, answers = drawn.session_turns() == 1, np.minimum(drawn.output_tokens, drawn.max_tokens)
    assert answers.mean() == pytest.approx(523, rel=0.06)
    assert np.percentile(answers, 90) == pytest.approx(1230, rel=0.1)
    before = np.concatenate([[0], (drawn.input_tokens + answers)[:-1]])
    new = drawn.input_tokens - np.where(first, 27_217, before)
    assert new.mean() == pytest.approx(2350, rel=0.15)
    assert 1 - new.sum() / drawn.input_tokens.sum() == pytest.approx(0.96, abs=0.015)
    assert drawn.delay_s is not None
    tools = drawn.delay_s[~first & (drawn.delay_s > 0)]
    assert 0.3 < np.median(tools) < 1.0  # of tools, and of a few people
    assert len(set(drawn.task_ids or ())) > 2000


def test_reasoning_has_long_answers_with_heavy_tails() -> None:
    drawn = draw(preset="reasoning", rate=1, requests=200_000)
    (entry,) = classes(preset="reasoning", rate=1)
    for lengths, tokens in ((entry.input, drawn.input_tokens), (entry.output, drawn.output_tokens)):
        assert isinstance(lengths, LogNormalPareto)
        assert lengths.tail_from is not None
        tail = tokens[tokens > lengths.tail_from]
        assert len(tail) / 200_000 == pytest.approx(0.05, rel=0.04)
        # Hill's estimator, far below the cap where the tail is cut
        near = tail[tail < lengths.tail_from * 4]
        cut = stats.truncpareto(lengths.alpha, 4.0, scale=lengths.tail_from)
        assert near.mean() == pytest.approx(cut.mean(), rel=0.02)
    assert np.median(drawn.output_tokens) > 2 * np.median(drawn.input_tokens)


def test_tenants_have_the_published_shares_and_burstiness() -> None:
    tenants = classes(preset="multi-tenant", rate=100)
    assert [each.name for each in tenants] == [f"tenant-{k:02d}" for k in range(1, 51)]
    rates = np.array([arrival_of(each).mean_rate for each in tenants])
    assert np.all(np.diff(rates) < 0)
    assert [rates[:k].sum() for k in (1, 3, 10, 50)] == pytest.approx([16, 30, 63, 100])
    variations = np.array([process.cv for each in tenants if isinstance(process := each.arrival, Gamma)])
    assert len(variations) == 50
    assert np.median(variations) == pytest.approx(1.2, rel=0.1)
    assert np.quantile(variations, 0.9) == pytest.approx(6, rel=0.1)
    # over 20 seeds the drawn shares of the first ranks are theirs, within the interval
    shares = [
        np.bincount(draw(s, preset="multi-tenant", rate=100, duration_s=400).class_index, minlength=50) for s in SEEDS
    ]
    found = np.array([each / each.sum() for each in shares])
    errors = found.std(axis=0, ddof=1) / np.sqrt(len(SEEDS))
    assert np.all(np.abs(found.mean(axis=0) - rates / 100) < 4.2 * errors)
    assert errors[0] < 0.01


def test_a_key_beside_a_preset_replaces_its_own() -> None:
    own = {"dist": "uniform", "min": 1, "max": 9}
    poisson = {"process": "poisson", "rate": 2}
    mine = {"name": "mine", "preset": "chat"}
    (plain,) = classes(requests=9, classes=[mine])
    (changed,) = classes(requests=9, classes=[{**mine, "output": own, "arrival": poisson, "priority": 3, "corr": 0.5}])
    assert changed.input == plain.input
    assert changed.output.model_dump()["dist"] == "uniform"
    assert (changed.arrival, changed.priority, changed.corr) == (ARRIVAL.validate_python(poisson), 3, 0.5)
    assert (plain.corr, plain.priority) == (0.07, 0)
    (fixed,) = classes(requests=9, classes=[{**mine, "input": {"dist": "fixed", "value": 5}}])
    assert fixed.corr == 0  # no ranks, and no error for a correlation that was not asked for


def test_a_preset_with_a_share_gives_lengths_alone() -> None:
    arrival = {"process": "constant", "rate": 8}
    both = [{"name": "a", "preset": "chat", "share": 3}, {"name": "t", "preset": "multi-tenant"}]
    found = classes(requests=9, arrival=arrival, classes=both)
    assert all(each.arrival is None for each in found)
    assert [found[0].share, sum(each.share or 0 for each in found[1:])] == pytest.approx([3, 1])
    drawn = draw(requests=40_000, arrival=arrival, classes=both)
    assert np.mean(drawn.class_index == 0) == pytest.approx(0.75, abs=0.01)
    rated = classes(requests=9, arrival=arrival, classes=[{"name": "a", "preset": "chat", "rate": 3}, both[1]])
    assert rated[0].arrival is not None
    assert arrival_of(rated[0]).mean_rate == 3


def test_a_preset_alone_is_two_thousand_requests() -> None:
    scenario = scenarios.load({"name": "x", "workload": {"preset": "chat", "rate": 6}})
    assert isinstance(scenario.workload, GeneratedWorkload)
    assert scenario.workload.requests == 2000
    assert scenarios.load({"name": "x", "workload": {"preset": "chat", "duration_s": 60}}) != scenario
    assert len(draw(preset="chat", rate=6)) == 2000
    assert draw(preset="chat", rate=6).class_names == ("chat",)


@pytest.mark.parametrize(
    "workload",
    [
        {"preset": "multi-tenant", "rate": 9},
        {"requests": 9, "classes": [{"name": "a", "preset": "code", "prefix": {"groups": 3, "tokens": 9, "zipf": 1}}]},
    ],
)
def test_survives_being_written_and_read(workload: dict[str, Any], tmp_path: Any) -> None:
    scenario = scenarios.load({"name": "x", "workload": workload})
    (tmp_path / "x.yaml").write_text(scenarios.dump(scenario), encoding="utf-8")
    assert scenarios.load(tmp_path / "x.yaml") == scenario
    assert scenarios.load(scenario, ["seed=4"]).workload == scenario.workload


def test_rate_and_name_are_set_from_outside(tmp_path: Any) -> None:
    (tmp_path / "x.yaml").write_text("workload: {preset: chat, rate: 6}\n", encoding="utf-8")
    faster = scenarios.load(tmp_path / "x.yaml", ["workload.rate=12", "workload.preset=code"])
    assert isinstance(faster.workload, GeneratedWorkload)
    (entry,) = faster.workload.all_classes()
    assert entry.arrival is not None
    assert entry.name == "code"
    assert arrival_of(entry).mean_rate == pytest.approx(12)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"preset": "chta"}, "unknown preset 'chta'.*did you mean `chat`"),
    "no published rate": ({"preset": "reasoning"}, "workload.preset: no rate was published"),
    "in a class": (
        {"requests": 5, "classes": [{"name": "a", "preset": "reasoning"}]},
        "classes.0.preset: no rate was published",
    ),
    "a rate without a preset": (
        {"rate": 3, "requests": 5, "classes": [{"name": "a", "preset": "chat"}]},
        "workload.rate: rate is that of a preset",
    ),
    "and classes": (
        {"preset": "chat", "classes": [{"name": "a", "preset": "chat"}]},
        "workload.classes: the preset says",
    ),
    "and arrival": (
        {"preset": "chat", "arrival": {"process": "poisson", "rate": 1}},
        "workload.arrival: the preset says",
    ),
    "and a trace": ({"preset": "chat", "trace": {"path": "t.csv"}}, "contradicts workload.trace"),
    "rate and arrival": (
        {
            "requests": 5,
            "classes": [{"name": "a", "preset": "chat", "rate": 2, "arrival": {"process": "poisson", "rate": 1}}],
        },
        "classes.0.rate: give one of rate and arrival",
    ),
    "rate and share": (
        {
            "requests": 5,
            "arrival": {"process": "poisson", "rate": 1},
            "classes": [{"name": "a", "preset": "chat", "rate": 2, "share": 3}, {"name": "b", "preset": "chat"}],
        },
        "classes.0.share: give one of share and rate",
    ),
    "a share of nothing": (
        {"requests": 5, "classes": [{"name": "a", "preset": "chat", "share": 0.5}]},
        "classes.0.share: a share of 0.5 would do nothing",
    ),
    "tenants with one arrival": (
        {
            "requests": 5,
            "classes": [{"name": "a", "preset": "multi-tenant", "arrival": {"process": "poisson", "rate": 1}}],
        },
        "classes.0.arrival: each tenant",
    ),
    "tenants called as a class": (
        {"requests": 5, "classes": [{"name": "a", "preset": "multi-tenant"}, {"name": "a-07", "preset": "chat"}]},
        "classes.1.name: two classes are called 'a-07'",
    ),
    "corr of fixed": (
        {
            "requests": 5,
            "classes": [{"name": "a", "preset": "chat", "corr": 0.5, "input": {"dist": "fixed", "value": 4}}],
        },
        "classes.0.corr: corr needs lengths that vary",
    ),
    "nothing at all": ({"requests": 5}, "give classes, a benchmark, or a preset: chat, code"),
    "a key of a class": ({"preset": "chat", "input": {"dist": "fixed", "value": 4}}, "`input` belongs under"),
}


@pytest.mark.parametrize(("workload", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_where_it_stands(workload: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"(?s){message}"):
        scenarios.load({"name": "x", "workload": workload}, check_files=False)


HINTS: dict[str, tuple[dict[str, Any], str]] = {
    "correlation": ({"correlation": 0.5}, "it is called `corr` here"),
    "system_prompt": ({"system_prompt": 500}, "it is called `prefix` here"),
    "a ramp": ({"arrival": {"process": "poisson", "rate": 1, "ramp": 3}}, "it is called `profile` here"),
    "rates": ({"arrival": {"process": "mmpp", "rate": 1, "rates": [1, 2]}}, "it is called `states` here"),
    "a key of a shape": (
        {"arrival": {"process": "poisson", "rate": 1, "profile": {"kind": "diurnal", "peak_to_trough_ratio": 3}}},
        "did you mean `peak_to_trough`. allowed: kind, peak_to_trough, peak_s, period_s\n",
    ),
}


@pytest.mark.parametrize(("keys", "hint"), HINTS.values(), ids=HINTS)
def test_other_tools_words_are_told_ours(keys: dict[str, Any], hint: str) -> None:
    with pytest.raises(InputError, match=f"(?s){hint}"):
        scenarios.load({"name": "x", "workload": {"requests": 5, "classes": [{"name": "a", "preset": "chat", **keys}]}})
