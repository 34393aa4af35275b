"""aiconfigurator's own predictions of the runs that we are scored on: docs/served.md shows them beside ours.

    python -m docs.writers.accuracy --write --rows ROWS       # with our environment: our error of each run, one a line
    pip install aiconfigurator==0.12.0                        # in an environment of its own
    python docs/writers/accuracy/their_estimates.py ROWS     # there: writes their_estimates.json, 6 CPU minutes

Each run is asked for by `cli_estimate` with the newest kernel tables of the package, the model, GPU, engine, lengths,
parallel sizes and users that the run names, and its precision. What is not said keeps that function's defaults.
"""

import contextlib
import io
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

FILE = Path(__file__).with_name("their_estimates.json")
_IN_FP4: Mapping[str, str] = {
    "deepseek-ai/DeepSeek-R1": "nvidia/DeepSeek-V3.1-NVFP4",
    "deepseek-ai/DeepSeek-V3": "nvidia/DeepSeek-V3.1-NVFP4",
    "MiniMaxAI/MiniMax-M2.5": "nvidia/MiniMax-M2.5-NVFP4",
    "moonshotai/Kimi-K2.5": "nvidia/Kimi-K2.5-NVFP4",
    "Qwen/Qwen3.5-397B-A17B": "nvidia/Qwen3.5-397B-A17B-NVFP4",
    "zhipuai/GLM-5": "nvidia/GLM-5-NVFP4",
}
_ITS_NAME: Mapping[str, str] = {
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
_SCALED_BY_BLOCK = ("DeepSeek", "MiniMax", "Qwen3", "GLM")
_DENSE = ("Llama-3", "Qwen3-32B")


def asked(run: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The model and the precisions by aiconfigurator's names."""
    model, precision = run["model"], run["precision"]
    if precision == "fp4" and model in _IN_FP4:
        return _IN_FP4[model], {}
    model = _ITS_NAME.get(model, model)
    if precision == "fp8":
        mode = "fp8_block" if any(name in model for name in _SCALED_BY_BLOCK) else "fp8"
        return model, {"gemm_quant_mode": mode, "moe_quant_mode": mode}
    return model, {}


def estimate(run: Mapping[str, Any]) -> tuple[float, float] | None:
    """TTFT and TPOT in ms; None for a run that aiconfigurator does not price."""
    from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found] # not installed with ours

    model, precisions = asked(run)
    if not any(name in model for name in _DENSE):
        moe_tp, moe_ep = run["moe_tensor"] or None, run["moe_expert"] or None
        gpus = run["tensor_parallel"] * run["data_parallel"]
        precisions |= {"moe_tp_size": moe_tp if moe_tp or moe_ep else gpus, "moe_ep_size": moe_ep}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = cli_estimate(
                model, run["system"], backend_name=run["engine"], backend_version="current", isl=run["isl"],
                osl=run["osl"], batch_size=max(run["concurrency"] // run["data_parallel"], 1),
                tp_size=run["tensor_parallel"], attention_dp_size=run["data_parallel"], **precisions,
            )  # fmt: skip
    except Exception:  # whatever it raises, the run is not priced
        return None
    return (found.ttft, found.tpot) if found.ttft and found.tpot else None


def beside(runs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Errors of both by engine, of the runs that both price: medians, and the 90th percentile of TPOT's."""
    errors: dict[str, list[tuple[float, float, float, float]]] = {}
    asked_for: dict[str, int] = {}
    for run in runs:
        if run["contradiction"] or run["refused"]:
            continue
        asked_for[run["engine"]] = asked_for.get(run["engine"], 0) + 1
        if theirs := estimate(run):
            ttft, tpot = theirs[0] / run["ttft_ms"] - 1.0, theirs[1] / run["tpot_ms"] - 1.0
            errors.setdefault(run["engine"], []).append((abs(tpot), abs(ttft), abs(run["tpot"]), abs(run["ttft"])))
    return {engine: _figures(some, asked_for[engine]) for engine, some in sorted(errors.items())}


def _figures(errors: list[tuple[float, float, float, float]], runs: int) -> dict[str, float]:
    figures: dict[str, float] = {"runs": runs, "both": len(errors)}
    for name, (tpot, ttft) in {"theirs": (0, 1), "ours": (2, 3)}.items():
        of_tpot = sorted(each[tpot] for each in errors)
        figures[f"{name}_tpot"] = round(median(of_tpot), 4)
        figures[f"{name}_tpot_p90"] = round(of_tpot[int(0.9 * len(of_tpot))], 4)
        figures[f"{name}_ttft"] = round(median(each[ttft] for each in errors), 4)
    return figures


if __name__ == "__main__":
    found = beside(map(json.loads, Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()))
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
