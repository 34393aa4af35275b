"""Bad scenarios: each is refused with the place of the offending key, what is allowed, and what may have been meant.

In the texts below `@@` stands right before the key that the message must point at. `WORKLOAD` is a good workload.
"""

from pathlib import Path

import pytest

from scenarios.schema.loader import load
from simulator.errors import InputError

WORKLOAD = """\
workload:
  requests: 10
  classes:
    - name: chat
      arrival: {process: poisson, rate: 6}
      input: {dist: fixed, value: 100}
      output: {dist: fixed, value: 10}
"""

CASES: dict[str, tuple[str, list[str]]] = {
    # unknown keys
    "unknown key at the top": (
        "@@sed: 1\nWORKLOAD",
        ["sed: unknown key", "did you mean `seed`?", "allowed: name, seed"],
    ),
    "unknown key in a section": (
        "engine:\n  @@max_num_seq: 4\nWORKLOAD",
        ["engine.max_num_seq: unknown key", "did you mean `max_num_seqs`?", "block_size"],
    ),
    "key of another section": ("@@max_num_seqs: 4\nWORKLOAD", ["`max_num_seqs` belongs under `engine`"]),
    "key one level too deep": ("engine: {policy: static, @@replicas: 2}\nWORKLOAD", ["belongs at the top level"]),
    "vLLM's name for tensor_parallel": (
        "hardware:\n  @@tensor_parallel_size: 2\nWORKLOAD",
        ["did you mean `tensor_parallel`?"],
    ),
    "another tool's word": (
        "workload:\n  requests: 1\n  classes:\n    - name: a\n      arrival: {process: poisson, rate: 1, @@qps: 6}\n"
        "      input: {dist: fixed, value: 1}\n      output: {dist: fixed, value: 1}\n",
        ["workload.classes.0.arrival.qps: unknown key", "it is called `rate` here"],
    ),
    "unknown key of a cost": ("cost: {kind: roofline, @@base_s: 1}\nWORKLOAD", ["cost.base_s: unknown key", "kind"]),
    "misspelt trace": ("workload:\n  @@trce: {path: x}\n", ["workload.trce: unknown key", "did you mean `trace`?"]),
    "a number as key": ("@@5: 3\nWORKLOAD", ["5: unknown key"]),
    "a boolean as key": ("@@true: 3\nWORKLOAD", ["true: unknown key"]),
    # duplicates and syntax
    "duplicate key at the top": ("seed: 1\nWORKLOAD@@seed: 2\n", ["duplicate key `seed`", "first given at 1:1"]),
    "duplicate key in a flow mapping": ("slo: {ttft_ms: 1, @@ttft_ms: 2}\nWORKLOAD", ["duplicate key `ttft_ms`"]),
    "tab": ("engine:\n@@\tpolicy: static\nWORKLOAD", ["tab used for indentation"]),
    "unclosed bracket": ("slo: {ttft_ms: 1\nengine@@: {}\n", ["not YAML"]),
    "a list": ("@@- a\n- b\n", ["expected a mapping", "a list"]),
    "a trace given as scenario": ("@@arrival_time_s,input_tokens\n0,5\n", ["expected a mapping"]),
    # wrong types
    "text for an int": ("engine:\n  @@max_num_seqs: many\nWORKLOAD", ["a whole number of at least 1", "'many'"]),
    "quoted number": ("engine:\n  @@max_num_seqs: '64'\nWORKLOAD", ["whole number", "without quotes: 64"]),
    "float for an int": ("engine:\n  @@max_num_seqs: 1e3\nWORKLOAD", ["not 1000.0", "write 1000"]),
    "bool for an int": ("@@replicas: true\nWORKLOAD", ["replicas: must be a whole number", "not true"]),
    "nothing for an int": ("@@replicas:\nWORKLOAD", ["replicas: must be a whole number", "nothing (null)"]),
    "yes for a bool": ("engine:\n  policy: static\n  @@stream: yes\nWORKLOAD", ["true or false", "write true"]),
    "number for a text": ("@@name: 2024\nWORKLOAD", ["name: must be", 'needs quotes: "2024"']),
    "list for a mapping": ("@@engine: [1]\nWORKLOAD", ["engine: must be a mapping", "a list"]),
    "text for a mapping": ("@@hardware: h200\nWORKLOAD", ["hardware: must be a mapping", "'h200'"]),
    "mapping for a list": (
        "workload:\n  requests: 1\n  @@classes: {name: a}\n",
        ["classes: must be a list", "a mapping"],
    ),
    "text for a number in a class": (
        "workload:\n  requests: 1\n  classes:\n    - name: a\n      arrival: {process: poisson, @@rate: fast}\n"
        "      input: {dist: fixed, value: 1}\n      output: {dist: fixed, value: 1}\n",
        ["workload.classes.0.arrival.rate: must be a number", "'fast'"],
    ),
    "text as a quantile": (
        "workload:\n  requests: 1\n  classes:\n    - name: a\n      arrival: {process: poisson, rate: 1}\n"
        "      input: {dist: fixed, value: 1}\n      output: {dist: empirical, quantiles: {0.5: 4, @@p99: 9}}\n",
        ["quantiles.p99: the key must be a number"],
    ),
    "model is a number": ("@@model: 8\nWORKLOAD", ["model: must be the name of a model", "not 8"]),
    # out of range
    "zero": ("engine: {@@block_size: 0}\nWORKLOAD", ["block_size: must be a whole number of at least 1", "not 0"]),
    "percentage": (
        "hardware: {@@gpu_memory_utilization: 90}\nWORKLOAD",
        ["a number above 0 and at most 1, not 90", "90 % is 0.9"],
    ),
    "utilisation of zero": ("hardware: {@@gpu_memory_utilization: 0}\nWORKLOAD", ["above 0 and at most 1, not 0"]),
    "watermark of one": ("engine: {@@watermark: 1.0}\nWORKLOAD", ["watermark: must be", "below 1"]),
    "one block": ("hardware: {@@num_gpu_blocks: 1}\nWORKLOAD", ["of at least 2", "or null"]),
    "no replicas": ("@@replicas: 0\nWORKLOAD", ["replicas: must be a whole number of at least 1"]),
    "negative time": ("measure: {@@warmup_s: -1}\nWORKLOAD", ["measure.warmup_s: must be a number of at least 0"]),
    "negative seed": ("@@seed: -1\nWORKLOAD", ["seed: must be a whole number of at least 0"]),
    "infinite": ("slo: {@@ttft_ms: .inf}\nWORKLOAD", ["slo.ttft_ms: must be a number", "inf"]),
    "no requests": ("workload: {@@requests: 0, classes: []}\n", ["workload.requests: must be", "at least 1 item"]),
    "a step without time": (
        "cost: {kind: linear, @@base_s: 0, per_token_s: 0, per_context_token_s: 0}\nWORKLOAD",
        ["a step would take no time"],
    ),
    "tensor_parallel that does not divide": (
        "hardware:\n  @@tensor_parallel: 3\nWORKLOAD",
        ["tensor_parallel 3", "llama-3.1-8b", "1, 2, 4, 8"],
    ),
    "a rate scale of zero": (
        "workload:\n  trace: {path: t.csv, @@rate_scale: 0}\n",
        ["rate_scale: must be a number above 0"],
    ),
    # unknown names
    "unknown policy": (
        "engine:\n  @@policy: chunked\nWORKLOAD",
        ["unknown policy 'chunked'", "`chunked_prefill`", "static"],
    ),
    "policy file without class": ("engine:\n  @@policy: ./mine.py\nWORKLOAD", ["path.py:Class", "./mine.py"]),
    "unknown router": ("@@router: roundrobin\nWORKLOAD", ["'roundrobin'", "`round_robin`", "least_loaded"]),
    "unknown cost": (
        "cost:\n  @@kind: rofline\nWORKLOAD",
        ["unknown kind 'rofline'", "`roofline`", "allowed: linear, roofline, profile, auto\n"],
    ),
    "cost without kind": ("@@cost: {base_s: 1}\nWORKLOAD", ["cost.kind: missing", "linear, roofline"]),
    "unknown model": ("@@model: llama3.1-8b\nWORKLOAD", ["llama3.1-8b", "did you mean llama-3.1-8b", "gpt2"]),
    "unknown gpu": ("hardware: {@@gpu: A100}\nWORKLOAD", ["hardware.gpu", "'A100'", "did you mean a100-"]),
    "unknown process": (
        WORKLOAD.replace("process: poisson", "@@process: poison"),
        ["unknown process 'poison'", "`poisson`", "gamma"],
    ),
    "unknown dist": (
        WORKLOAD.replace("{dist: fixed, value: 10}", "{@@dist: fixd}"),
        ["unknown dist 'fixd'", "`fixed`"],
    ),
    "unknown trace format": ("workload:\n  trace: {path: t.csv, @@format: azur}\n", ["format", "azur", "azure"]),
    "unknown time unit": (
        "workload:\n  trace: {path: t.csv, @@time_unit: sec}\n",
        ["unknown time_unit 'sec'", "s, ms, us, ns"],
    ),
    "custom model with an unknown key": (
        "model: {base: llama-3.1-8b, @@layrs: 4}\nWORKLOAD",
        ["unknown key 'layrs'", "did you mean layers"],
    ),
    "custom gpu out of range": (
        "hardware:\n  gpu: {base: h100, @@memory_gib: -4}\nWORKLOAD",
        ["hardware.gpu.memory_gib", "more than 0", "-4"],
    ),
    # missing
    "no workload": ("@@name: x\n", ["workload: missing"]),
    "linear without its terms": (
        "@@cost: {kind: linear, base_s: 1}\nWORKLOAD",
        ["cost.per_token_s: missing", "per_context"],
    ),
    "trace without path": (
        "workload:\n  @@trace: {format: auto}\n",
        ["workload.trace.path: missing", "path of a trace"],
    ),
    "class without lengths": (
        "workload:\n  requests: 1\n  classes:\n    - @@name: a\n      arrival: {process: poisson, rate: 1}\n",
        ["workload.classes.0.input: missing", "workload.classes.0.output: missing"],
    ),
    "no such trace": ("workload:\n  trace: {@@path: nowhere/t.csv}\n", ["no such file", "nowhere/t.csv", "no folder"]),
    "no such policy file": ("engine: {@@policy: 'mine.py:Mine'}\nWORKLOAD", ["engine.policy: no such file", "mine.py"]),
    # contradictions
    "trace and classes": (
        "workload:\n  trace: {path: t.csv}\n  @@classes: []\n",
        ["workload.classes: contradicts workload.trace", "read or generated"],
    ),
    "neither trace nor classes": ("@@workload: {}\n", ["neither a trace nor classes", "trace: {path"]),
    "requests and duration": (
        WORKLOAD.replace("  requests: 10", "  @@requests: 10\n  duration_s: 5"),
        ["exactly one of requests and duration_s"],
    ),
    "swap without host memory": (
        "engine:\n  policy: preemptive\n  @@preemption_mode: swap\nWORKLOAD",
        ["no host memory", "hardware.swap_space_gib"],
    ),
    # units
    "seconds for milliseconds": (
        "slo:\n  @@ttft_s: 0.5\nWORKLOAD",
        ["slo.ttft_s: unknown key", "in milliseconds it is `ttft_ms: 500`", "tpot_ms"],
    ),
    "milliseconds for seconds": (
        WORKLOAD.replace("  requests: 10", "  @@duration_ms: 60000"),
        ["in seconds it is `duration_s: 60`"],
    ),
    "no unit": ("measure:\n  @@warmup: 10\nWORKLOAD", ["with its unit it is `warmup_s` (seconds)"]),
    "GB for GiB": ("hardware:\n  @@swap_space_gb: 8.589934592\nWORKLOAD", ["in GiB it is `swap_space_gib: 8`"]),
    "minutes for seconds": (WORKLOAD.replace("  requests: 10", "  @@duration_min: 2"), ["`duration_s: 120`"]),
    "unit in the value": ("slo:\n  @@ttft_ms: 0.5s\nWORKLOAD", ["the unit is in the key (milliseconds): write 500"]),
    "another unit in the value": ("slo:\n  @@ttft_ms: 5 apples\nWORKLOAD", ["(milliseconds): write the number alone"]),
    "tokens in the value": ("engine:\n  @@max_num_batched_tokens: 2k\nWORKLOAD", ["write the number alone"]),
    # not in this version
    "prefix caching": (
        "engine:\n  @@enable_prefix_caching: 'on'\nWORKLOAD",
        ["must be true or false"],
    ),
    "two profiles": (
        "cost:\n  kind: profile\n  name: rtx-4090-llama-3.1-8b\n  @@path: x.json\nWORKLOAD",
        ["either a name or a path"],
    ),
    "a profile of nobody's": (
        "cost:\n  kind: profile\n  @@name: rtx-4090-lama-3.1-8b\nWORKLOAD",
        ["no profile or tables called", "rtx-4090-llama-3.1-8b"],
    ),
    "a policy of nobody's": ("engine: {@@policy: sglnag}\nWORKLOAD", ["did you mean `sglang`", "chunked_prefill"]),
    "an order of nobody's": (
        "engine: {@@order: lifo}\nWORKLOAD",
        ["unknown order 'lifo'", "dfs-weight, edf, fair, fcfs, lof, lpm"],
    ),
    "a weight of nothing": ("engine:\n  order: fair\n  class_weights: {@@all: 0}\nWORKLOAD", ["at least 1e-06"]),
    "a predictor of another kind": (
        "workload:\n  trace: {path: t.csv}\n  predictor: {@@kind: orakel}\n",
        ["did you mean `oracle`"],
    ),
    "noise without a size": (
        "workload:\n  trace: {path: t.csv}\n  @@predictor: {kind: noisy}\n",
        ["predictor.cv: missing"],
    ),
    "an unknown trace format": (
        "workload:\n  trace: {path: t.csv, @@format: burst-gpt}\n",
        ["unknown trace format 'burst-gpt'", "did you mean burstgpt?"],
    ),
    "a sample of nothing": (
        "workload:\n  trace: {path: t.csv, @@sample: 0}\n",
        ["sample: must be a number above 0"],
    ),
    "arrivals of an unknown process": (
        "workload:\n  trace: {path: t.csv, arrival: {@@process: poison, rate: 1}}\n",
        ["poison", "did you mean `poisson`?"],
    ),
}


@pytest.mark.parametrize(("text", "parts"), CASES.values(), ids=CASES.keys())
def test_a_bad_scenario_is_refused_at_its_key(tmp_path: Path, text: str, parts: list[str]) -> None:
    (tmp_path / "t.csv").touch()
    text = text.replace("WORKLOAD", WORKLOAD)
    before, mark, after = text.partition("@@")
    assert mark
    assert "@@" not in after
    path = tmp_path / "bad.yaml"
    path.write_text(before + after, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(path)
    error = caught.value
    place = (str(path), before.count("\n") + 1, len(before) - before.rfind("\n"))
    assert (error.file, error.line, error.column) == place, str(error)
    for part in parts:
        assert part in f"{error}\n"
    assert str(error).startswith(f"{place[0]}:{place[1]}:{place[2]}: ")


OVERRIDES: dict[str, tuple[str, list[str]]] = {
    "mistyped": ("engine.max_num_seqs=abc", ["engine.max_num_seqs: must be a whole number of at least 1", "'abc'"]),
    "unknown key": ("engine.max_num_seq=4", ["engine.max_num_seq: unknown key", "`max_num_seqs`"]),
    "unknown section": ("engin.max_num_seqs=4", ["engin: unknown key", "`engine`"]),
    "unit": ("slo.ttft_s=2", ["in milliseconds it is `ttft_ms: 2000`"]),
    "no value": ("engine.max_num_seqs", ["not of the form a.b=VALUE", "--set engine.max_num_seqs=128"]),
    "no key": ("=4", ["not of the form a.b=VALUE"]),
    "empty part": ("engine..order=fcfs", ["not of the form a.b=VALUE"]),
    "value that is no YAML": ("engine.order=[1", ["engine.order: the value is not YAML"]),
    "duplicate in the value": ("slo={ttft_ms: 1, ttft_ms: 2}", ["duplicate key `ttft_ms`"]),
    "through a text": ("model.layers=4", ["model is the text 'llama-3.1-8b'", "--set 'model={layers: ...}'"]),
    "index out of range": ("workload.classes.3.priority=1", ["workload.classes is a list", "'3'", "0 to 0", "chat"]),
    "index misspelt": ("workload.classes.caht.priority=1", ["did you mean workload.classes.chat?"]),
    "index negative": ("workload.classes.-1.priority=1", ["'-1' is not one of its indices"]),
    "in a class": ("workload.classes.0.priority=high", ["workload.classes.0.priority: must be a whole number"]),
    "contradiction": (
        "workload.trace={path: t.csv}",
        ["workload.trace: contradicts workload.requests", "--set 'workload={trace"],
    ),
    "swap": ("engine.preemption_mode=swap", ["no host memory"]),
    "kind without its keys": ("cost={kind: linear}", ["cost.base_s: missing"]),
    "no such file": ("engine.policy=./absent.py:P", ["engine.policy: no such file"]),
    "null": ("replicas=", ["replicas: must be a whole number", "nothing (null)"]),
}


@pytest.mark.parametrize(("override", "parts"), OVERRIDES.values(), ids=OVERRIDES.keys())
def test_a_bad_override_is_named(tmp_path: Path, override: str, parts: list[str]) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(f"model: llama-3.1-8b\n{WORKLOAD}", encoding="utf-8")
    load(path)
    with pytest.raises(InputError) as caught:
        load(path, [override])
    assert f"--set {override}" in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_all_errors_of_a_file_are_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"slo: {{ttft_s: 1}}\n{WORKLOAD}engine:\n  block_size: 0\n  stream: 3\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(path, ["replicas=0"])
    first, *others = str(caught.value).splitlines()
    assert first == f"{path}:1:7: slo.ttft_s: unknown key"
    assert [line.partition(": ")[0].strip() for line in others[1:]] == [
        f"also {path}:10:3",
        f"also {path}:11:3",
        "also --set replicas=0",
    ]


def test_many_errors_are_cut_off_with_their_number(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("".join(f"k{i}: 1\n" for i in range(40)) + WORKLOAD, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load(path)
    assert str(caught.value).splitlines()[-1].strip() == "and 19 more"
    assert str(caught.value).count("also ") == 20
