"""Decisions of our engine on cases of pipelines, in the format of the recorded files."""

from collections.abc import Mapping
from typing import Any

from simulator.simulate import simulate_fleet
from simulator.timing.formula_cost import Linear
from simulator.timing.pipeline_cost import PipelineCost
from tests.parity.cases import group_of, workload_of

_MILLION = 1_000_000


def tokens_of(parts: list[list[int]]) -> list[int]:
    """Token ids of a prompt that a case names by streams: [stream, first, count] each; stream 0 is all zeros."""
    return [stream * _MILLION + first + i if stream else 0 for stream, first, count in parts for i in range(count)]


def with_ids(case: Mapping[str, Any]) -> dict[str, Any]:
    """The case with its prompts and answers as token ids."""
    requests = []
    for request in case["requests"]:
        prompt = tokens_of(request["prompt"])
        answer = tokens_of([[*request["output"], request["output_len"]]])
        ids = {"prompt_len": len(prompt), "prompt_token_ids": prompt, "output_token_ids": answer}
        requests.append({**request, **ids})
    return {**case, "requests": requests}


def pipeline(case: Mapping[str, Any], *, fast_forward: bool = True, by_id: bool = False) -> list[dict[str, Any]]:
    """The batches of a replica whose stages all take the step cost of the case, and wait for nothing but each other."""
    given, cost = with_ids(case), case["cost"]
    stage = Linear(cost["a"], cost["b"], cost["c"])
    pipe = PipelineCost((stage,) * case["config"]["stages"], cost["hop"], idle_s=cost["idle"], waits_for_tokens=False)
    run = simulate_fleet(
        workload_of(given), [group_of(given, by_id=by_id, pipeline=pipe)], fast_forward=fast_forward, log_decisions=True
    )
    assert run.decisions is not None
    return [{**step, "t_start": step["t_start_s"], "t_end": step["t_end_s"]} for step in run.decisions]
