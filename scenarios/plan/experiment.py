"""The experiment on a real server that tests a plan's answer with the fewest GPU minutes.

A plan says that the limits hold up to a rate, and that the true one lies in an interval. So one replica is run twice:
at the low end of the interval, where all limits should hold, and at the high end, where one should not. Each run has
the busiest stretch of the traffic, as many requests as let the metric that decides be known to a given share. The
simulation of the same stretch says beforehand what to expect, and how long it takes.
"""

import json
import math
import shlex
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from scenarios.assembly.engines import resolved_yaml
from scenarios.plan.answer import UNKNOWN_MODEL, deploy, draws_of
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal, chosen_goals, parse_goal
from scenarios.plan.plan import make_plan
from scenarios.plan.trial import STEADY, Laboratory, Traffic, Trial
from scenarios.runs.storage.run_folder import CANDIDATES, COMMANDS, EXPERIMENT, EXPERIMENT_RUNS, PLAN
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.hardware.models import HUGGING_FACE
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.results.records import Records
from simulator.workload import Workload

# The edge of a plan's answer: the interval of the largest rate of one replica, and the scenario that serves it.


@dataclass(frozen=True, slots=True)
class Edge:
    """`low` and `high` are requests per second of one replica, which `scenario` describes; it had `replicas`."""

    scenario: Scenario
    goals: tuple[Goal, ...]
    low: float
    high: float
    replicas: int


def edge_of_plan(folder: Path, overrides: Sequence[str] = ()) -> Edge:
    """Read the edge of a folder that `plan --out` wrote. Raises InputError where its plan has no answer."""
    path = folder / PLAN
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        best, slo = plan["candidates"][0], plan["slo"]
        low, high, replicas = best["rate"]["low"], best["rate"]["high"], int(best["replicas"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise InputError("this is no folder of `batchlab plan --out`", file=str(path)) from None
    if low is None or high is None or not best["feasible"]:
        raise InputError("the plan has no rate that holds: there is nothing to test", file=str(path))
    scenario = load(folder / CANDIDATES / "1.yaml", [*overrides, "replicas=1"])
    goals = tuple(parse_goal(text, scenario) for text in slo)
    return Edge(scenario, goals, low / replicas, high / replicas, replicas)


def edge_of_scenario(scenario: Scenario, texts: Sequence[str]) -> Edge:
    """Search the edge of a scenario as it stands. Raises InputError where no rate holds."""
    if scenario.fleet is not None:
        raise InputError("the scenario has a fleet of groups: test the groups one by one")
    goals = chosen_goals(texts, scenario)
    answer = make_plan(scenario, goals, seeds=3).answers[0]
    if answer.bounds is None or not answer.feasible:
        raise InputError(f"{answer.note or 'no rate holds'} There is nothing to test.")
    one = load(scenario, ["replicas=1"])
    return Edge(one, goals, answer.bounds.low / answer.replicas, answer.bounds.high / answer.replicas, answer.replicas)


WITHIN = 0.1
"""The half-width at 95 % to which the metric that decides is to be known, as a share of it."""

_BEYOND = 10  # requests beyond a percentile, at the least
_FEWEST = 100
_APART = 1.1  # factor between the two rates, at the least: nearer ones tell little apart
_NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the experiment, on one replica.

    `rate` is that of the whole traffic, `stretch_rate` that of the stretch, which is the busiest, in requests per
    second. `seconds` is how long the run takes, from the first arrival to the last answer. `within` is the half-width
    at 95 % to which `decides`, the metric nearest to its limit, will be known; NaN where it has no spread.
    """

    name: str
    rate: float
    stretch_rate: float
    workload: Workload
    trial: Trial
    seconds: float
    gpus: int
    within: float

    @property
    def decides(self) -> Goal:
        """The goal that is missed by most, or met by least."""
        return self.trial.worst

    @property
    def gpu_minutes(self) -> float:
        """GPU minutes of the run, without the start of the server."""
        return self.seconds / 60 * self.gpus

    @property
    def expected(self) -> str:
        """What the plan expects of the run."""
        return "holds" if self.trial.holds else "misses"


def experiment(
    scenario: Scenario, goals: Sequence[Goal], low: float, high: float, *, within: float = WITHIN
) -> tuple[Run, Run]:
    """Design the two runs, at `low` and `high` requests per second, for the traffic of one replica.

    Raises InputError for traffic whose clients wait for answers: a benchmark sends requests at given times.
    """
    if high < low * _APART:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(_APART), middle * math.sqrt(_APART)
    traffic = Traffic(scenario)
    lab = Laboratory(traffic, goals)
    candidate = Candidate({}, scenario)
    first, second = EXPERIMENT_RUNS
    return _run(lab, candidate, first, low, within), _run(lab, candidate, second, high, within)


def _run(lab: Laboratory, candidate: Candidate, name: str, rate: float, within: float) -> Run:
    seed = lab.traffic.scenario.seed
    whole = lab.traffic.workload(rate, seed)
    if whole.answers_back:
        raise InputError(
            "the clients of this workload wait for answers: a benchmark sends requests at given times",
            hint="leave sessions: closed_loop, timeouts and closed loops out",
        )
    trial = lab.run(candidate, rate, early_stop=False)
    deciding = _deciding(trial)
    enough = (
        math.ceil(len(whole) * (_half_width(trial, deciding) / within) ** 2) if deciding is not None else len(whole)
    )
    quantiles = [goal.quantile for goal in lab.goals if goal.quantile is not None]
    fewest = max([_FEWEST, *(math.ceil(_BEYOND / (1 - quantile)) for quantile in quantiles if quantile < 1)])
    count = min(max(enough, fewest), len(whole))
    stretch = lab.traffic.workload(rate, seed, count if count < len(whole) else 0)
    trial = lab.run(candidate, rate, piece=count if count < len(whole) else 0, early_stop=False)
    records = trial.records
    assert records is not None
    deciding = _deciding(trial)
    span_s = float(stretch.arrival_s[-1] - stretch.arrival_s[0])
    return Run(
        name,
        rate,
        (count - 1) / span_s if span_s > 0 else rate,
        stretch,
        trial.bare(),
        _end_s(records) - float(stretch.arrival_s[0]),
        candidate.gpus(1),
        math.nan if deciding is None else _half_width(trial, deciding),
    )


def _deciding(trial: Trial) -> Goal | None:
    """Return the goal nearest to its limit, or beyond it by most, of those that have a value a request."""
    with_tails = [
        (goal.excess(value), goal)
        for goal, value, tail in zip(trial.goals, trial.values, trial.tails, strict=True)
        if len(tail) and goal != STEADY
    ]
    return max(with_tails, key=lambda each: each[0])[1] if with_tails else None


def _half_width(trial: Trial, goal: Goal) -> float:
    """Return the half-width at 95 % of a goal's value in a trial, as a share of it, from its blocks drawn again."""
    drawn = draws_of(goal, trial.tails[trial.goals.index(goal)])
    centre = float(np.nanmean(drawn))
    return _NORMAL * float(np.nanstd(drawn)) / centre if centre > 0 else 0.0


def _end_s(records: Records) -> float:
    """Return the end of the last step."""
    done = records.requests.last_token_s
    return float(np.nanmax(done)) if len(done) else 0.0


# The files and commands of an experiment: requests that two benchmarks replay, scenarios that `validate` reads.
#
# The requests are JSON Lines of timestamp (s), input_length, output_length (tokens) and hash_ids, which name the
# blocks of the prompt: `timed_trace` of `vllm bench serve` makes prompts of exactly these lengths from them, which
# share what the ids share (vLLM's documentation, Benchmark CLI, Replay timed traces). GuideLLM's `trace_synthetic`
# reads the same lines and leaves the ids out (vllm-project/guidellm,
# src/guidellm/data/deserializers/trace_synthetic.py).

_ALONE = 512  # tokens of a block where prompts share nothing: Mooncake's
_SHARED = 16  # tokens of a block where they share a prefix
_WARM_UP = 20  # requests that are sent before and do not count
_URL = "http://localhost:8000"


def block_tokens(workload: Workload) -> int:
    """Return the tokens of a block that the requests' hash_ids name."""
    sizes = {each.hash_block_size for each in workload.content or () if each is not None and each.block_hashes}
    if len(sizes) == 1 and all(each is None or each.block_hashes for each in workload.content or ()):
        return sizes.pop()
    return _ALONE if workload.content is None else _SHARED


def requests_of(workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield the requests as the benchmarks read them, in order of arrival, the first at 0."""
    size, chains = block_tokens(workload), Chains()
    names: dict[Hashable, int] = {}
    start_s = float(workload.arrival_s[0])
    for request in workload.requests():
        keys = BlockKeys(request, size, chains)
        blocks: list[Hashable] = [keys[block] for block in range(request.input_tokens // size)]
        if request.input_tokens % size:
            blocks.append((request.row, "end"))  # a block that is not full is no other's
        yield {
            "timestamp": round(request.arrival_s - start_s, 6),
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": [names.setdefault(key, len(names)) for key in blocks],
        }


def scenario_yaml(scenario: Scenario, run: Run) -> str:
    """Return the scenario of a run, which reads the requests beside it."""
    data = yaml.safe_load(resolved_yaml(scenario))
    data["name"] = f"{scenario.name}-{run.name}"
    data["replicas"] = 1
    data["workload"] = {"trace": {"path": f"{run.name}.jsonl", "format": "mooncake", "time_unit": "s"}}
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def vllm_command(scenario: Scenario, run: Run) -> str:
    """Return the command of `vllm bench serve` for a run."""
    flags: list[str] = ["vllm", "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions"]
    flags += ["--base-url", _URL, "--model", _model(scenario)]
    flags += ["--dataset-name", "timed_trace", "--dataset-path", f"{run.name}.jsonl", "--self-timed"]
    flags += ["--timed-trace-sec-multiplier", "1", "--timed-trace-chunk-hash-size", str(block_tokens(run.workload))]
    flags += ["--num-prompts", str(len(run.workload)), "--num-warmups", str(_WARM_UP), "--disable-shuffle"]
    flags += ["--ignore-eos", "--temperature", "0", "--percentile-metrics", "ttft,tpot,itl,e2el"]
    flags += ["--metric-percentiles", "50,90,95,99", "--save-result", "--save-detailed"]
    return shlex.join([*flags, "--result-filename", f"{run.name}.result.json"])


def guidellm_command(scenario: Scenario, run: Run) -> str:
    """Return the command of GuideLLM 0.7 for a run."""
    extras = {"body": {"ignore_eos": True, "temperature": 0}}
    backend = {"kind": "openai_http", "target": _URL, "model": _model(scenario), "request_format": "/v1/completions"}
    flags: list[str] = ["guidellm", "run", "--backend", json.dumps({**backend, "extras": extras})]
    flags += ["--data", f"kind=trace_synthetic,path={run.name}.jsonl", "--data-loader", "kind=pytorch,samples=-1"]
    flags += ["--profile", "kind=replay", "--output", f"kind=json,path={run.name}.result.json"]
    return shlex.join(flags)


def validate_command(run: Run) -> str:
    """Return the command that reads a run's result back."""
    return f"batchlab validate {run.name}.yaml --measured {run.name}.result.json"


def commands(scenario: Scenario, runs: Sequence[Run]) -> str:
    """Return the whole experiment as a shell script with remarks."""
    minutes = sum(run.gpu_minutes for run in runs)
    lines = [
        f"# {scenario.name}: {minutes:.1f} GPU minutes, the start of the server apart.",
        "",
        "# The server, in another terminal:",
        f"#   {deploy(scenario)}",
        "",
        "set -e",
    ]
    for run in runs:
        lines += [
            "",
            f"# {run.name}: {len(run.workload):,} requests, {run.seconds / 60:.1f} minutes; {run.decides.text} "
            f"{'should hold' if run.trial.holds else 'should be missed'}.",
            vllm_command(scenario, run),
            "# or, with GuideLLM, which must keep every request in its JSON:",
            f"#   {guidellm_command(scenario, run)}",
        ]
    lines += ["", "# How far the simulation is from it:", *map(validate_command, runs)]
    return "\n".join(lines) + "\n"


def write_experiment(folder: Path, scenario: Scenario, runs: Sequence[Run], design: dict[str, Any]) -> None:
    """Write the files into an existing folder. Equal experiments give equal bytes."""
    for run in runs:
        rows = "".join(json.dumps(row) + "\n" for row in requests_of(run.workload))
        (folder / f"{run.name}.jsonl").write_text(rows, encoding="utf-8", newline="\n")
        (folder / f"{run.name}.yaml").write_text(scenario_yaml(scenario, run), encoding="utf-8", newline="\n")
    (folder / COMMANDS).write_text(commands(scenario, runs), encoding="utf-8", newline="\n")
    text = json.dumps(design, indent=2, ensure_ascii=False)
    (folder / EXPERIMENT).write_text(text + "\n", encoding="utf-8", newline="\n")


def _model(scenario: Scenario) -> str:
    return HUGGING_FACE.get(scenario.model, UNKNOWN_MODEL) if isinstance(scenario.model, str) else UNKNOWN_MODEL
