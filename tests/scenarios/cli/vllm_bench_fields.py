"""Run where vLLM is: what `vllm bench serve` makes of the requests of a result, and the names of its fields.

usage: PYTHON vllm_bench_fields.py RESULT.json
"""

import ast
import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_LISTS = ("errors", "latencies", "output_lens", "ttfts", "itls", "input_lens", "start_times")


def names(function: Any, variable: str) -> list[str]:
    """The keys that a function gives a dictionary, in order: those of the first literal, and those set one by one."""
    tree = ast.parse(inspect.getsource(function))
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target: Any = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == variable and isinstance(node.value, ast.Dict):
                found = found or [str(key.value) for key in node.value.keys if isinstance(key, ast.Constant)]
            one = isinstance(target, ast.Subscript) and getattr(target.value, "id", "") == variable
            if one and isinstance(target.slice, ast.Constant):
                found.append(str(target.slice.value))
    return found


def main() -> None:
    serve: Any = import_module("vllm.benchmarks.serve")
    output: Any = import_module("vllm.benchmarks.lib.endpoint_request_func").RequestFuncOutput
    result = json.loads(Path(sys.argv[1]).read_text())
    outputs = [
        output(
            success=not error,
            latency=latency,
            output_tokens=tokens,
            ttft=ttft,
            itl=gaps,
            prompt_len=inputs,
            error=error,
            start_time=start,
        )
        for error, latency, tokens, ttft, gaps, inputs, start in zip(*(result[key] for key in _LISTS), strict=True)
    ]
    goodput = {"ttft": 500.0, "tpot": 50.0}
    metrics, _ = serve.calculate_metrics([], outputs, result["duration"], None, [50.0, 90.0, 95.0, 99.0], goodput)
    figures = {key: getattr(metrics, key) for key in vars(metrics) if "percentiles" not in key}
    for name in ("ttft", "tpot", "itl", "e2el"):
        figures |= {f"p{p:g}_{name}_ms": value for p, value in getattr(metrics, f"percentiles_{name}_ms")}
    fields = [names(serve.main_async, "result_json"), names(serve.benchmark, "result")]
    print(json.dumps({"figures": {key: float(value) for key, value in figures.items()}, "fields": fields}))


main()
