"""The scenario of drafts in SGLang shows what its head says."""

from typing import Any

import scenarios

NAME = "drafts-and-memory"
TREE = ("engine.speculative_config.eagle_topk=4", "engine.speculative_config.num_draft_tokens=8")


def summary(*overrides: str) -> dict[str, Any]:
    return dict(scenarios.run(scenarios.load(NAME, overrides)).summary)


def test_a_tree_takes_memory_from_others() -> None:
    none, chain, tree = (
        summary("engine.speculative_config.num_speculative_tokens=0"),
        summary(),
        summary(*TREE),
    )
    assert {found["completed"] for found in (none, chain, tree)} == {200}
    assert chain["output_throughput"] > 1.5 * none["output_throughput"]
    assert tree["mean_batch_size"] < 0.9 * chain["mean_batch_size"]
    assert tree["output_throughput"] < 0.9 * chain["output_throughput"]
    assert tree["mean_ttft_ms"] > 1.2 * chain["mean_ttft_ms"]
