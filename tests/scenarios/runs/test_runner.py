"""Running scenarios from Python: results, pairing by seed, and what is said about bad policies."""

import textwrap
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import scenarios
from scenarios.assembly.engines import with_policy
from scenarios.runs.comparison import Compare, merge_notes
from scenarios.runs.storage.run_folder import read_run
from simulator.errors import InputError, PolicyError
from simulator.policies import load_policy
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from tests.command import SMALL
from tests.laws.scenarios import Memory, make_workload
from tests.shared_data import shared

DECISION = {
    "step", "t_start_s", "t_end_s", "scheduled", "admitted", "preempted", "swapped_out", "swapped_in", "finished",
    "waiting", "running", "num_free_blocks", "num_free_blocks_end",
}  # fmt: skip


def small(**changes: Any) -> dict[str, Any]:
    """The small scenario as a mapping; `a__b=value` changes a key."""
    data: dict[str, Any] = yaml.safe_load(SMALL)
    for path, value in changes.items():
        *outer, last = path.split("__")
        holder = data
        for key in outer:
            holder = holder.setdefault(key, {})
        holder[last] = value
    return data


def write_policy(folder: Path, body: str, name: str = "Mine") -> str:
    """A policy of the user's in a file; returns how a scenario names it."""
    text = f"""
        from dataclasses import dataclass

        from simulator.plan import Chunk, Preemption, StepPlan


        @dataclass(frozen=True, slots=True)
        class {name}:
            max_num_seqs: int = 4
            patience: float = 1.5

            def plan(self, view):
        """
    path = folder / f"{name.lower()}.py"
    path.write_text(textwrap.dedent(text).lstrip() + textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8) + "\n")
    return f"{path}:{name}"


GREEDY = """
    chunks = [Chunk(r, r.num_tokens) for r in list(view.waiting)[: self.max_num_seqs - len(view.running)]]
    return StepPlan(prefill=tuple(chunks))
"""


def test_result_is_what_the_contract_says() -> None:
    result = scenarios.run(scenarios.load("quickstart", ["workload.requests=200"]), log_decisions=True)
    assert result.summary["completed"] == len(result.requests) == 200
    assert result.summary["num_steps"] == result.steps["repeat"].sum() == len(result.decisions or [])
    wanted = "request_id class status arrival_s scheduled_s first_token_s last_token_s input_tokens output_tokens"
    assert {*wanted.split(), "ttft_ms", "tpot_ms", "e2el_ms", "queue_time_ms", "preemptions"} <= {*result.requests}
    assert {"start_s", "end_s", "repeat"} <= {*result.steps}
    assert all(decision.keys() >= DECISION for decision in result.decisions or [])
    assert (result.requests["ttft_ms"] == (result.requests["first_token_s"] - result.requests["arrival_s"]) * 1e3).all()


def test_decisions_only_on_request() -> None:
    assert scenarios.run(small()).decisions is None


def test_fast_forward_changes_nothing() -> None:
    fast = scenarios.run(small(), log_decisions=True)
    slow = scenarios.run(small(), log_decisions=True, fast_forward=False)
    assert fast.summary == slow.summary
    assert fast.decisions == slow.decisions
    assert fast.requests.equals(slow.requests)
    assert fast.steps.equals(slow.steps)


def test_names_paths_mappings_and_scenarios(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    results = [scenarios.run(source) for source in (path, str(path), small(), scenarios.load(path))]
    assert all(result.summary == results[0].summary for result in results)


def test_the_resolved_scenario_gives_the_same_run_again(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, GREEDY)
    for changes in ({}, {"engine__policy": "static"}, {"engine": {"policy": policy, "patience": 2.0}}):
        first = scenarios.run(small(**changes))
        again = scenarios.run(yaml.safe_load(first.scenario_yaml))
        assert again.scenario_yaml == first.scenario_yaml
        assert again.summary == first.summary


def test_the_resolved_scenario_shows_a_policys_own_defaults(tmp_path: Path) -> None:
    result = scenarios.run(small(engine={"policy": write_policy(tmp_path, GREEDY)}))
    engine = yaml.safe_load(result.scenario_yaml)["engine"]
    assert (engine["max_num_seqs"], engine["patience"], engine["block_size"]) == (4, 1.5, 16)


@pytest.mark.parametrize(
    ("policy", "given", "own"),
    [
        ("sarathi", {}, {"max_num_batched_tokens": 512, "watermark": 0.01}),
        ("fastgen", {}, {"max_num_batched_tokens": 768}),
        ("vllm_v0", {"order": "priority"}, {"max_num_batched_tokens": 2048, "watermark": 0.01, "order": "priority"}),
        ("orca", {"max_num_seqs": 2}, {"max_num_batched_tokens": 2048, "max_num_seqs": 2}),
    ],
)
def test_a_systems_own_defaults_are_those_of_the_run_and_of_its_scenario(
    tmp_path: Path, policy: str, given: dict[str, Any], own: dict[str, Any]
) -> None:
    """Where they differ from the schema's too: the resolved scenario gives the same run, the same memory included."""
    result = scenarios.run(small(engine={"policy": policy, **given}))
    assert own.items() <= yaml.safe_load(result.scenario_yaml)["engine"].items()
    path = tmp_path / "resolved.yaml"
    path.write_text(result.scenario_yaml)
    again = scenarios.run(path)
    assert again.summary == result.summary
    assert again.records.num_blocks == result.records.num_blocks
    assert again.scenario_yaml == result.scenario_yaml


def test_save_writes_a_run_folder(tmp_path: Path) -> None:
    result = scenarios.run(small(hardware__num_gpu_blocks=60, replicas=2), log_decisions=True)
    saved = read_run(result.save(tmp_path / "run"))
    assert saved.summary == result.summary
    for part in ("requests", "rows", "gaps", "requeues"):
        for field in fields(getattr(saved.records, part)):
            read, made = (getattr(getattr(records, part), field.name) for records in (saved.records, result.records))
            assert read.dtype == made.dtype, field.name
            np.testing.assert_array_equal(read, made, err_msg=field.name)
    assert (tmp_path / "run" / "decisions.jsonl.gz").exists()


def test_seed_changes_the_requests() -> None:
    one, two = (scenarios.run(small(seed=seed)).summary["total_input_tokens"] for seed in (1, 2))
    assert one != two


def test_warm_up_is_cut() -> None:
    whole, cut = (scenarios.run(small(measure={"warmup_s": s})).summary["completed"] for s in (0.0, 1.0))
    assert 0 < cut < whole


def test_replicas_share_the_requests() -> None:
    result = scenarios.run(small(replicas=3, router="least_loaded"))
    assert set(result.requests["replica"]) == {0, 1, 2}
    assert result.summary["completed"] == 60


def test_cost_per_million_tokens_is_that_of_all_gpus() -> None:
    result = scenarios.run(small(replicas=2))
    seconds, tokens = result.summary["duration"], result.summary["total_output_tokens"]
    usd_per_hour = scenarios.load(small()).resolve_gpu().usd_per_hour
    assert usd_per_hour is not None
    expected = 2 * usd_per_hour * seconds / 3600 / tokens * 1e6
    assert result.summary["usd_per_million_output_tokens"] == pytest.approx(expected, rel=1e-12)


# -------------------------------------------------------------------------------------------------- what does not fit


def test_requests_that_never_fit_are_counted_and_said() -> None:
    result = scenarios.run(small(hardware__num_gpu_blocks=41))
    rejected = result.summary["rejected"]
    assert 0 < rejected < 60
    assert result.summary["completed"] == 60 - rejected
    assert list(result.requests["status"]).count("rejected") == rejected
    assert any(f"{rejected} of 60 requests" in note and "640 tokens" in note for note in result.notes)
    assert all("KV blocks" in why for why in result.requests.query("status == 'rejected'")["reject_reason"])


def test_it_is_an_error_if_none_fits() -> None:
    with pytest.raises(InputError, match=r"none of the 60 requests.*holds 16 tokens"):
        scenarios.run(small(hardware__num_gpu_blocks=2, workload__classes=[{**CHAT, "input": fixed(100)}]))


def fixed(value: int) -> dict[str, Any]:
    return {"dist": "fixed", "value": value}


CHAT: Mapping[str, Any] = {
    "name": "chat",
    "arrival": {"process": "constant", "rate": 20},
    "input": fixed(100),
    "output": fixed(10),
}


# ------------------------------------------------------------------------------------------------------ users' policies


def test_a_policy_of_ones_own_runs(tmp_path: Path) -> None:
    result = scenarios.run(small(engine={"policy": write_policy(tmp_path, GREEDY)}))
    assert result.summary["completed"] == 60
    assert result.summary["mean_batch_size"] <= 4


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / len(view.running)", "ZeroDivisionError"),
        ("raise KeyError('x')", "KeyError"),
        ("return StepPlan(prefill=(Chunk(view.waiting.head, 0),)) if len(view.waiting) else StepPlan()", "plan"),
        ("return StepPlan(preempt=(Preemption(view.waiting.head),)) if len(view.waiting) else StepPlan()", "plan"),
        ("return StepPlan(prefill=tuple(Chunk(r, r.num_tokens) for r in view.waiting))", "plan"),
    ],
)
def test_a_policy_that_breaks_is_the_users_to_mend(tmp_path: Path, body: str, message: str) -> None:
    policy = write_policy(tmp_path, body)
    with pytest.raises(InputError, match=message) as caught:
        scenarios.run(small(engine={"policy": policy}))
    assert caught.value.file == policy.rpartition(":")[0]


@pytest.mark.parametrize("parameter", ["max_num_batched_tokens: int = 64", "max_num_batched_tokens: int = 1_024"])
def test_a_policy_is_held_to_its_budget_and_the_step_is_named(tmp_path: Path, parameter: str) -> None:
    """Whole prompts, without a look at the budget: the first step that breaks it is named, with time and file."""
    policy = write_policy(tmp_path, "return StepPlan(prefill=tuple(Chunk(r, r.num_tokens) for r in view.waiting))")
    path = Path(policy.rpartition(":")[0])
    text = path.read_text().replace("max_num_seqs: int = 4", f"max_num_seqs: int = 1000\n    {parameter}")
    path.write_text(text)
    said = r": Mine at step [\d,]+ \(\d.* s\): plan computes [\d,]+ tokens; max_num_batched_tokens is (64|1,024)\n"
    with pytest.raises(InputError, match=said) as caught:
        scenarios.run(small(engine={"policy": policy}))
    assert caught.value.file == str(path)


def test_a_broken_plan_names_the_file_without_a_scenario_too(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, "return StepPlan(more=True)")
    with pytest.raises(PolicyError) as caught:
        simulate(
            make_workload([0.0], [(4, 4)]),
            make_policy=lambda: load_policy(policy, {}),
            kv=Memory(100, 4),
            cost=Linear(1.0),
        )
    assert caught.value.file == policy.rpartition(":")[0]
    assert str(caught.value).startswith(f"{caught.value.file}: Mine at step 0 (0.0 s): plan sets more=True")


def test_the_line_that_broke_is_named(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, "x = 1\nreturn x / 0")
    with pytest.raises(InputError) as caught:
        scenarios.run(small(engine={"policy": policy}))
    lines = Path(policy.rpartition(":")[0]).read_text().splitlines()
    assert caught.value.line is not None
    assert lines[caught.value.line - 1].strip() == "return x / 0"


def test_a_built_in_policy_that_breaks_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, view: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("simulator.policies.chunked_prefill.ChunkedPrefill.plan", broken)
    with pytest.raises(ZeroDivisionError):
        scenarios.run(small())


# ------------------------------------------------------------------------------------------------------------ compare


def test_policies_get_the_same_requests() -> None:
    comparing = Compare(small(), ["static", "continuous", "preemptive", "chunked_prefill"], seeds=2)
    columns = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority")
    seen: dict[int, list[bytes]] = {}
    for _, seed, result in comparing:
        requests = result.records.requests
        assert result.scenario.seed == seed
        seen.setdefault(seed, []).append(b"".join(getattr(requests, name).tobytes() for name in columns))
    assert list(seen) == [7, 8]
    assert all(len(of_seed) == 4 and len(set(of_seed)) == 1 for of_seed in seen.values())
    assert seen[7] != seen[8]


def test_a_comparison_is_its_runs() -> None:
    found = scenarios.compare(small(), ["static", "chunked_prefill"], seeds=2)
    for label in ("static", "chunked_prefill"):
        alone = [scenarios.run(small(seed=s, engine__policy=label)).summary for s in (7, 8)]
        assert found.summaries[label] == alone


def test_means_intervals_and_differences() -> None:
    found = scenarios.compare(small(), ["static", "chunked_prefill"], seeds=3)
    means = found.means()
    name = "p99_ttft_ms"
    values = {label: np.array([s[name] for s in found.summaries[label]]) for label in means}
    half = 4.302652729911275 * values["static"].std(ddof=1) / 3**0.5  # Student's t, 2 degrees of freedom
    assert means["static"][name] == pytest.approx(values["static"].mean())
    assert means["static"]["intervals"][name] == pytest.approx(values["static"].mean() + np.array([-half, half]))
    paired = values["chunked_prefill"] - values["static"]
    half = 4.302652729911275 * paired.std(ddof=1) / 3**0.5
    difference = means["chunked_prefill"]["difference_to"]["static"][name]
    assert difference == pytest.approx(paired.mean() + np.array([0, -half, half]))
    assert means["static"]["seeds"] == [7, 8, 9]
    assert means["static"]["difference_to"] == {}


def test_one_seed_has_no_intervals() -> None:
    found = scenarios.compare(small(), ["static"])
    assert found.means()["static"] == {
        **found.summaries["static"][0], "seeds": [7], "intervals": {}, "difference_to": {},
    }  # fmt: skip


def test_keys_that_a_policy_does_not_take_are_left_out_and_said() -> None:
    data = small(engine__order="priority", engine__watermark=0.0)
    found = scenarios.compare(data, ["chunked_prefill", "static"])
    assert found.notes == ("static: does not take order, left out here",)
    alone = scenarios.run(small(engine__policy="static")).summary
    assert found.summaries["static"] == [alone]
    with pytest.raises(InputError, match=r"engine\.order.*static does not use"):
        scenarios.run(small(engine__policy="static", engine__order="priority"))


def test_keys_that_it_takes_are_kept() -> None:
    chosen, dropped = with_policy(scenarios.load(small(engine__policy="static", engine__stream=False)), "continuous")
    assert (chosen.engine.parameter("max_num_seqs"), chosen.engine.policy, dropped) == (8, "continuous", ("stream",))


def test_a_users_parameters_do_not_reach_a_built_in_policy(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, GREEDY)
    found = scenarios.compare(small(engine={"policy": policy, "patience": 3.0}), [policy, "continuous"])
    assert list(found.summaries) == ["Mine", "continuous"]
    assert found.notes == ("continuous: does not take patience, left out here",)


def test_classes_of_the_same_name_get_labels_of_their_own(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
    found = scenarios.compare(small(), [write_policy(folder, GREEDY) for folder in folders])
    assert list(found.summaries) == ["Mine", "Mine-2"]


def test_equal_seeds_are_not_taken_for_evidence() -> None:
    """Without randomness all seeds make the same requests: an interval of width 0 would claim certainty."""
    data = small(workload__classes=[CHAT])
    found = scenarios.compare(data, ["static", "continuous"], seeds=3)
    assert found.seeds == (7,)
    assert all(len(summaries) == 1 for summaries in found.summaries.values())
    assert any("no intervals" in note for note in found.notes)


@pytest.mark.parametrize(("jitter_s", "seeds"), [(0.0, (0,)), (0.5, (0, 1))])
def test_a_trace_differs_by_seed_only_with_jitter(tmp_path: Path, jitter_s: float, seeds: tuple[int, ...]) -> None:
    rows = "\n".join(f"{index * 0.2},{50 + index},{5 + index}" for index in range(20))
    (tmp_path / "trace.csv").write_text(f"arrival_time_s,input_tokens,output_tokens\n{rows}\n")
    data = small(workload={"trace": {"path": str(tmp_path / "trace.csv"), "jitter_s": jitter_s}}, seed=0)
    assert scenarios.compare(data, ["continuous"], seeds=2).seeds == seeds


@pytest.mark.parametrize(
    ("policies", "message"),
    [([], "no policy"), (["static", "static"], "named twice"), (["statc"], "mean `static`"), (["sglnag"], "`sglang`")],
)
def test_bad_lists_of_policies(policies: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        scenarios.compare(small(), policies)
    assert message in str(caught.value)
    assert caught.value.file == "--policies"


def test_notes_common_to_all_are_said_once() -> None:
    assert merge_notes({"a": ["x", "y"], "b": ["y", "z"]}) == ("a: x", "y", "b: z")
    assert merge_notes({"a": ["x"]}) == ("x",)


@pytest.mark.shared
def test_every_request_of_a_real_trace_is_accounted_for() -> None:
    path = shared("traces/AzureLLMInferenceTrace_conv.csv.gz")
    data = {"workload": {"trace": {"path": str(path), "limit": 3000}}, "hardware": {"gpu": "a100-80gb"}}
    found = scenarios.compare(data, ["static", "continuous", "preemptive", "chunked_prefill"])
    for label, (summary,) in found.summaries.items():
        assert summary["completed"] + summary["rejected"] + summary["unfinished"] == 3000, label


def test_a_full_queue_rejects(tmp_path: Path) -> None:
    """The limit on the queue is the engine's own key; the folder says who was rejected, and why."""
    crowded = small(engine__max_num_seqs=1)
    assert scenarios.run(crowded).summary["rejected"] == 0
    result = scenarios.run(small(engine__max_num_seqs=1, engine__max_queued_requests=2))
    rejected = int(result.summary["rejected"])
    assert 0 < rejected < len(result.requests)
    assert result.summary["queue_depth_max"] <= 2
    turned_away = result.requests[result.requests["status"] == "rejected"]
    assert len(turned_away) == rejected
    assert set(turned_away["reject_reason"]) == {"the queue is full: max_queued_requests is 2"}
    assert (result.summary["aborted"], result.summary["aborted_computed_tokens"]) == (0, 0)
    with pytest.raises(InputError, match="max_queued_requests"):
        scenarios.load(small(engine__max_queued_requests=0))
