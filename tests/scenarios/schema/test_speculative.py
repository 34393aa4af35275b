"""`engine.speculative_config`: what it may say, what is refused and where, and what a run is built with."""

from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.assembly.engines import resolved_yaml, with_policy
from scenarios.assembly.replica_parts import build
from scenarios.plan.candidate import make_candidate
from scenarios.runs.storage.run_folder import read_run, write_run
from simulator.errors import InputError
from simulator.metrics.part_metrics import PER_POSITION

CLASSES = [
    {"name": name, "arrival": {"process": "constant", "rate": 2}, "input": {"dist": "fixed", "value": 100},
     "output": {"dist": "fixed", "value": 40}} for name in ("chat", "code")
]  # fmt: skip
RATES = {"rates": [0.8, 0.5, 0.2]}


def scenario(engine: dict[str, Any] | None = None, **config: Any) -> scenarios.Scenario:
    drafting = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance": RATES, **config}
    own = {key: value for key, value in drafting.items() if value is not ...}
    data = {"cost": {"kind": "roofline"}, "workload": {"requests": 20, "classes": CLASSES}}
    return scenarios.load({**data, "engine": {"policy": "vllm", **(engine or {}), "speculative_config": own}})


@pytest.mark.parametrize(
    ("config", "key", "what"),
    [
        ({"method": "medusa"}, "method", "eagle3"),
        ({"num_speculative_tokens": ...}, "num_speculative_tokens", "missing"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens", "at least 0"),
        ({"acceptance": "dsv4"}, "acceptance", "did you mean `dsv4_mtp`"),
        ({"acceptance": {"rate": [0.5]}}, "acceptance.rate", "allowed: rates, mean_length"),
        ({"acceptance": {"rates": [0.5, 0.6, 0.1]}}, "acceptance.rates", "0.6 comes after 0.5"),
        ({"acceptance": {"rates": [0.5], "mean_length": 2.0}}, "acceptance", "either rates or a mean_length"),
        ({"acceptance_by_class": {"chat": "nothing"}}, "acceptance_by_class.chat", "no measurement"),
        ({"method": "draft_model"}, "draft_model", "missing: the model that drafts"),
        ({"method": "draft_model", "draft_model": "qwen3-0.6"}, "draft_model", "did you mean qwen3-0.6b"),
        ({"method": "ngram", "draft_model": "qwen3-0.6b"}, "draft_model", "has no draft model"),
        ({"num_speculative_tokens_per_batch_size": [[2, 8, 3]]}, "num_speculative_tokens_per_batch_size", "begin at"),
        ({"parallel_drafting": True}, "parallel_drafting", "for method draft_model"),
        ({"num_spec_tokens": 3}, "num_spec_tokens", "did you mean `num_speculative_tokens`"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_at_its_key(config: dict[str, Any], key: str, what: str) -> None:
    with pytest.raises(InputError) as error:
        scenario(**config)
    told = str(error.value)
    assert f"engine.speculative_config.{key}" in told
    assert what in told


@pytest.mark.parametrize(
    ("engine", "config", "key", "what"),
    [
        ({"policy": "tgi"}, {}, "", "these do: chunked_prefill, in_time, sglang, vllm"),
        (
            {"policy": "sglang", "max_num_seqs": 4096, "max_num_batched_tokens": 8192},
            {},
            "",
            "steps of up to 16,384 tokens",
        ),
        ({}, {"eagle_topk": 2, "num_draft_tokens": 4}, "", "vLLM verifies chains of drafts"),
        ({}, {"method": "mtp"}, ".method", "no layers for multi-token prediction"),
        ({}, {"num_speculative_tokens": 5}, ".acceptance.rates", "3 rates for 5 drafts"),
        ({}, {"acceptance": "llama-3.1-8b_eagle3", "num_speculative_tokens": 4}, ".acceptance", "at most 3 drafts"),
        ({}, {"acceptance": {"mean_length": 4.5}}, ".acceptance.mean_length", "within 1 and 4"),
        ({}, {"method": "ngram", "acceptance": ...}, ".acceptance", "batchlab list acceptance"),
        ({"long_prefill_token_threshold": 3}, {}, "", "long_prefill_token_threshold must be 0 or at least 4"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_rest_is_refused_at_its_key(
    engine: dict[str, Any], config: dict[str, Any], key: str, what: str
) -> None:
    with pytest.raises(InputError) as error:
        build(scenario(engine, **config))
    told = f"{error.value} {error.value.hint}"
    assert f"engine.speculative_config{key}" in told
    assert what in told


def test_no_drafts_are_none() -> None:
    none = scenario(num_speculative_tokens=0)
    without = scenarios.load({**none.resolved(), "engine": {"policy": "vllm"}})
    assert build(none).speculation is None
    assert resolved_yaml(none) == resolved_yaml(without)
    assert scenarios.run(none).summary == scenarios.run(without).summary
    other, left_out = with_policy(scenario(), "continuous")
    assert left_out == ("speculative_config",)
    assert other.engine.speculative_config is None
    assert with_policy(none, "continuous")[1] == ()


def test_a_measurement_of_the_model_and_method_is_taken() -> None:
    found, named = (scenarios.run(scenario(acceptance=name)).records.drafts for name in (..., "llama-3.1-8b_eagle3"))
    assert found is not None
    assert named is not None
    assert found.steps.tolist() == named.steps.tolist()


def test_classes_and_traces_have_acceptance_of_their_own(tmp_path: Path) -> None:
    result = scenarios.run(
        scenario(acceptance={"rates": [0, 0, 0]}, acceptance_by_class={"code": {"rates": [1, 1, 1]}})
    )
    drafts, requests = result.records.drafts, result.records.requests
    assert drafts is not None
    is_code = requests.class_index[drafts.row] == 1
    assert set(drafts.accepted[~is_code].tolist()) == {0}
    assert set(drafts.accepted[is_code].tolist()) == {3}
    with pytest.raises(InputError, match="no class is called 'cod'"):
        scenarios.run(scenario(acceptance_by_class={"cod": RATES}))
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time_s,input_tokens,output_tokens,accepted_drafts\n0,10,9,3 0\n0,10,9,0\n")
    config = {"method": "ngram", "num_speculative_tokens": 3}
    data = {"cost": {"kind": "roofline"}, "workload": {"trace": {"path": str(trace)}}}
    drafts = scenarios.run({**data, "engine": {"policy": "vllm", "speculative_config": config}}).records.drafts
    assert drafts is not None
    steps = list(zip(drafts.row.tolist(), drafts.accepted.tolist(), drafts.steps.tolist(), strict=True))
    assert steps == [(0, 0, 1), (0, 3, 2), (1, 0, 8)]  # after the prompt's token 4 + 1 + 3 of 4, and 8 times 1
    trace.write_text("arrival_time_s,input_tokens,output_tokens,accepted_drafts\n0,10,9,3 0\n0,10,9,\n")
    with pytest.raises(InputError, match="nor of every request"):
        scenarios.run({**data, "engine": {"policy": "vllm", "speculative_config": config}})


def test_a_run_says_what_became_of_its_drafts() -> None:
    result = scenarios.run(scenario({"async_scheduling": False}))
    summary, drafts = result.summary, result.records.drafts
    assert drafts is not None
    steps, proposed = int(drafts.steps.sum()), int(drafts.drafts @ drafts.steps)
    accepted = int(drafts.accepted @ drafts.steps)
    assert (summary["spec_decode_num_drafts"], summary["spec_decode_draft_tokens"]) == (steps, proposed)
    assert summary["spec_decode_accepted_tokens"] == accepted
    assert summary["spec_decode_wasted_tokens"] == proposed - accepted
    assert summary["spec_decode_acceptance_length"] == pytest.approx(1 + accepted / steps)
    assert summary["spec_decode_acceptance_rate"] == pytest.approx(100 * accepted / proposed)
    by_position = [int(drafts.steps[drafts.accepted > place].sum()) / steps for place in range(3)]
    assert summary[PER_POSITION] == pytest.approx(by_position)
    assert 1 + sum(by_position) == pytest.approx(summary["spec_decode_acceptance_length"])
    assert by_position == pytest.approx(RATES["rates"], abs=0.15)
    assert summary["output_tokens_per_step"] == pytest.approx(20 * 40 / summary["num_steps"])
    rows = result.steps
    computed = rows["prefill_tokens"] + rows["decoding"]
    assert int((rows["tokens"] - computed).sum()) == proposed  # drafts are tokens of their steps


def test_a_run_folder_keeps_the_counts_of_drafts(tmp_path: Path) -> None:
    result = scenarios.run(scenario())
    write_run(tmp_path, scenario_yaml=result.scenario_yaml, summary=result.summary, records=result.records)
    saved, drafts = read_run(tmp_path).records.drafts, result.records.drafts
    assert saved is not None
    assert drafts is not None
    for name in ("row", "drafts", "accepted", "steps"):
        assert getattr(saved, name).tolist() == getattr(drafts, name).tolist()


def test_steps_that_are_jumped_over_count_their_drafts() -> None:
    quick, stepwise = (scenarios.run(scenario(), fast_forward=fast) for fast in (True, False))
    assert quick.summary == stepwise.summary


def test_a_plan_may_vary_the_number_of_drafts() -> None:
    keys = {"engine.speculative_config.num_speculative_tokens": 2, "engine.max_num_seqs": 9}
    found = make_candidate(scenario(), keys)
    drafting = found.scenario.engine.speculative_config
    assert drafting is not None
    assert (drafting.num_speculative_tokens, drafting.method) == (2, "eagle3")
    assert found.scenario.engine.parameter("max_num_seqs") == 9
    assert found.settings == keys
    other = make_candidate(scenario(), {**keys, "engine.policy": "tgi"})
    assert set(other.settings) == {"engine.policy", "engine.max_num_seqs"}
