"""The files and commands of an experiment: requests that two benchmarks replay, scenarios that `validate` reads.

The requests are JSON Lines of timestamp (s), input_length, output_length (tokens) and hash_ids, which name the blocks
of the prompt: `timed_trace` of `vllm bench serve` makes prompts of exactly these lengths from them, which share what
the ids share (vLLM's documentation, Benchmark CLI, Replay timed traces). GuideLLM's `trace_synthetic` reads the same
lines and leaves the ids out (vllm-project/guidellm, src/guidellm/data/deserializers/trace_synthetic.py).
"""

import json
import shlex
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from scenarios.assembly.engine_policy import resolved_yaml
from scenarios.plan.deploy import UNKNOWN_MODEL, deploy
from scenarios.plan.experiment import Run
from scenarios.runs.storage.run_folder import COMMANDS, EXPERIMENT
from scenarios.schema.scenario import Scenario
from simulator.hardware.models import HUGGING_FACE
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.workload import Workload

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
