"""What a plan says of KV on the host: when to take it, and when its link is what requests wait for."""

from typing import Any

import pytest

import scenarios
from scenarios.plan.bottleneck import Shares, shares
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal
from scenarios.plan.plan import OFFLOAD, proposals

TTFT = Goal("p90_ttft_ms", 100.0)


def candidate(offload: Any, gpu: Any = "h100", **more: Any) -> Candidate:
    prompts = {"prefix": {"groups": 20, "tokens": 3000}, "input": {"dist": "fixed", "value": 50}}
    traffic = {"name": "a", "arrival": {"process": "poisson", "rate": 6}, "output": {"dist": "fixed", "value": 4}}
    data = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": gpu, "num_gpu_blocks": 1000, "kv_offload": offload},
        "cost": {"kind": "roofline"},
        "workload": {"requests": 60, "classes": [{**traffic, **prompts}]},
        "engine": {"policy": "vllm", "enable_prefix_caching": True, **more},
    }
    return Candidate({}, scenarios.load(data))


def test_kv_on_the_host_is_proposed_where_loading_is_faster_than_computing() -> None:
    def first(given: Candidate, *, has_content: bool = True) -> Any:
        return next(proposals(given, TTFT, Shares({"compute": 1.0}), has_content=has_content))

    assert first(candidate(None)) == {OFFLOAD: {"host_gib": 256.0}}
    assert OFFLOAD not in first(candidate(None), has_content=False)
    assert OFFLOAD not in first(candidate(None, enable_prefix_caching=False))
    assert OFFLOAD not in first(candidate(None, {"base": "h100", "host_link_gb_s": 0.5}))
    assert OFFLOAD not in first(candidate({"host_gib": 64}))


@pytest.mark.parametrize(("link_gb_s", "binds"), [(1.0, True), (50.0, False)])
def test_waits_for_loads_are_the_links(link_gb_s: float, binds: bool) -> None:
    given = candidate({"host_gib": 64, "link_gb_s": link_gb_s})
    found = shares(scenarios.run(given.scenario).records, given, TTFT)
    assert sum(found.of.values()) == pytest.approx(1.0)
    assert (found.bottleneck == "link") == binds
    assert (found.of["link"] > 0.5) == binds
    first = next(proposals(given, TTFT, found, has_content=True))
    assert (first == {OFFLOAD: None}) == binds
