"""Steps that verify drafts: their price by each cost model, beside steps of one query a request."""

from collections.abc import Callable

import pytest

from scenarios.profiles import shipped_profiles, shipped_tables
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import find_model
from simulator.timing.cost import CostModel, StepShape
from simulator.timing.formula_cost import Linear, Roofline
from simulator.timing.profile import Options, ProfileCost, read_profile
from simulator.timing.tables import compose, read_tables


def verify(seqs: int, drafts: int, context: int = 1000) -> StepShape:
    """So many requests of that context before the step, each with so many drafts."""
    asks = seqs if drafts else 0
    return StepShape(seqs, seqs * (context + 1 + drafts), draft_seqs=asks, draft_tokens=seqs * drafts)


def composed(gpu: str, tables: str, model: str) -> ProfileCost:
    found = compose(read_tables(shipped_tables()[tables]), find_model(model), find_gpu(gpu), 1, "even", "auto")
    return ProfileCost(found)


COSTS: dict[str, Callable[[], CostModel]] = {
    "roofline": lambda: Roofline(find_model("llama-3.1-8b"), find_gpu("h100")),
    "apart": lambda: composed("h100", "h100-vllm-0.24", "llama-3.1-8b"),
    "beside": lambda: composed("l40s", "l40s-vllm-0.24", "llama-3.1-8b"),
    "together": lambda: ProfileCost(read_profile(shipped_profiles()["rtx-4090-llama-3.1-8b"])),
}


@pytest.mark.parametrize("name", COSTS)
def test_drafts_are_nearly_free_for_one_request_and_cost_their_tokens_in_a_large_batch(name: str) -> None:
    cost = COSTS[name]()
    alone = cost.step_s(verify(1, 3)) / cost.step_s(verify(1, 0))
    many = cost.step_s(verify(256, 3)) / cost.step_s(verify(256, 0))
    assert 0.97 < alone < 1.15
    assert 1.5 < many < 4.0


@pytest.mark.parametrize("name", COSTS)
def test_drafts_are_tokens_beside_prompts_too(name: str) -> None:
    cost = COSTS[name]()
    chunk = {"prefill_seqs": 1, "prefill_tokens": 512, "prefill_context": 512, "prefill_longest": 512}
    beside = verify(200, 3)._replace(**chunk, prefill_pairs=512 * 513 // 2)
    without = verify(200, 0)._replace(**chunk, prefill_pairs=512 * 513 // 2)
    assert beside.tokens == without.tokens + 600
    assert cost.step_s(beside) > 1.15 * cost.step_s(without)


def test_a_linear_step_has_its_drafts_among_the_tokens_and_the_proposed_ones_apart() -> None:
    cost = Linear(1.0, 0.1, 0.01, 0.001)
    assert cost.step_s(StepShape(4, 100, draft_seqs=4, draft_tokens=12, drafted_tokens=8)) == pytest.approx(
        1.0 + 0.1 * 16 + 0.01 * 100 + 0.001 * 8
    )
    assert cost.step_s(StepShape(0, 0, drafted_tokens=8)) == 0.0


def test_queries_of_latent_attention_take_more_tiles() -> None:
    """128 query heads fill a tile with one query each: four queries take four times the attention."""
    latent, long = composed("h200", "h200-vllm-0.24", "deepseek-v3"), 60_000
    added = [latent.step_s(verify(8, drafts, long)) - latent.step_s(verify(8, drafts, 1000)) for drafts in (0, 3)]
    assert added[1] / added[0] == pytest.approx(4.0, rel=0.1)
    grouped = composed("h200", "h200-vllm-0.24", "llama-3.1-8b")
    added = [grouped.step_s(verify(8, drafts, long)) - grouped.step_s(verify(8, drafts, 1000)) for drafts in (0, 3)]
    assert added[1] / added[0] == pytest.approx(1.0, rel=0.05)


def test_a_drafter_samples_one_token_for_each_request() -> None:
    pairs: list[tuple[CostModel, CostModel]] = [
        (
            Roofline(find_model("llama-3.1-8b"), find_gpu("h100"), host_per_seq_s=1e-4),
            Roofline(find_model("llama-3.1-8b"), find_gpu("h100"), host_per_seq_s=1e-4, samples_drafts=False),
        ),
        (
            ProfileCost(read_profile(shipped_profiles()["h100-llama-3.1-8b"]), Options(host_per_seq_s=1e-4)),
            ProfileCost(
                read_profile(shipped_profiles()["h100-llama-3.1-8b"]),
                Options(host_per_seq_s=1e-4, samples_drafts=False),
            ),
        ),
    ]
    for wide, narrow in pairs:
        one, all_rows = narrow.step_s(verify(256, 3)), wide.step_s(verify(256, 3))
        assert 0.0 < all_rows - one < 0.2 * one
        assert narrow.step_s(verify(256, 0)) == wide.step_s(verify(256, 0))
