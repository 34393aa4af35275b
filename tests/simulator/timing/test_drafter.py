"""The time and memory of drafters: heads by the model's dimensions, models of their own, nothing for lookups."""

import pytest

import scenarios
from scenarios.assembly.replica_parts import build
from scenarios.assembly.speculation import build_drafter
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import find_model
from simulator.timing.added import EAGLE3_VOCAB, Drafter, Joint, draft_head, memory_of
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear, Roofline
from simulator.timing.profile import ProfileCost
from simulator.timing.tables.assumed import small_kernels

WORKLOAD = {"preset": "chat", "rate": 1.0, "requests": 5}


def scenario(
    model: str = "llama-3.1-8b", cost: str = "roofline", gpu: str = "h100", **config: object
) -> scenarios.Scenario:
    drafting = {"method": "eagle3", "num_speculative_tokens": 3, "acceptance": {"mean_length": 2.0}, **config}
    hardware = {"gpu": gpu, "tensor_parallel": 8 if model == "deepseek-v3" else 1}
    data = {"model": model, "hardware": hardware, "cost": {"kind": cost}, "workload": WORKLOAD}
    return scenarios.load({**data, "engine": {"policy": "vllm", "speculative_config": drafting}})


def step(seqs: int, drafts: int, context: int = 1000) -> StepShape:
    """Verify as many drafts for each request as are drafted then."""
    asks = seqs if drafts else 0
    return StepShape(
        seqs, seqs * (context + 1 + drafts), draft_seqs=asks, draft_tokens=seqs * drafts, drafted_tokens=seqs * drafts
    )


def test_a_head_is_one_layer_of_the_model() -> None:
    llama, deepseek = find_model("llama-3.1-8b"), find_model("deepseek-v3")
    eagle = draft_head(llama, "eagle")
    assert (eagle.layers, eagle.hidden, eagle.intermediate, eagle.vocab) == (1, 4096, 14336, llama.vocab)
    assert draft_head(llama, "eagle3").vocab == EAGLE3_VOCAB
    mtp = draft_head(deepseek, "mtp")
    assert (mtp.layers, mtp.moe_layers, mtp.experts) == (1, 1, 256)
    own = mtp.layer_parameters() + mtp.moe_layers * mtp.experts * mtp.expert_parameters + 2 * mtp.hidden**2
    # The DeepSeek-V3 repository counts 11.5 B parameters of the module besides the tables that it shares.
    assert own / 1e9 == pytest.approx(11.5, rel=0.02)
    dense = draft_head(deepseek, "eagle")
    assert (dense.experts, dense.intermediate, dense.dtype_bytes) == (0, 18432, 2)


def test_each_further_token_is_a_pass_over_one_token_a_request() -> None:
    counted = Drafter(Linear(1.0, 0.01, 0.0))
    assert counted.s(step(4, 1)) == pytest.approx(1 + 0.01 * 8)
    assert counted.s(step(4, 3)) == pytest.approx(1 + 0.01 * 16 + 2 * (1 + 0.01 * 4))
    assert counted.s(step(4, 3)._replace(drafted_tokens=0)) == 0.0
    parallel = Drafter(Linear(1.0, 0.01, 0.0), is_parallel=True)
    assert parallel.s(step(4, 3)) == pytest.approx(1 + 0.01 * (16 + 8))
    prompt = StepShape(0, 0, 2, 600, 600, 90_000, prefill_longest=300, drafted_tokens=6)
    assert counted.s(prompt) == pytest.approx(1 + 6 + 2 * (1 + 0.02))
    tree = Drafter(Linear(1.0, 0.01, 0.0), branches=3)  # of each request, in every pass but the first
    assert tree.s(step(4, 3)) == pytest.approx(1 + 0.01 * 16 + 2 * (1 + 0.01 * 12))


def test_a_pass_of_a_head_has_small_kernels_beside_its_products() -> None:
    """14 launches of 2 us, element-wise kernels, and a sampler of 25 us; more with experts and for more tokens."""
    dense, routed = (draft_head(find_model(name), "mtp") for name in ("llama-3.1-8b", "deepseek-v3"))
    one = small_kernels(dense, find_gpu("h100"), 1).s(1, 1)
    assert 60e-6 < one < 75e-6
    assert small_kernels(dense, find_gpu("h100"), 1).s(4096, 64) > one + 1e-5
    assert small_kernels(routed, find_gpu("h100"), 8).launches_s == pytest.approx(2e-6 * (7 + 7 + 5))
    passes = Drafter(Linear(1.0), small=small_kernels(dense, find_gpu("h100"), 1))
    assert passes.s(step(1, 3)) == pytest.approx(3 + 3 * one, rel=1e-6)
    built = build_drafter(scenario())
    assert built is not None
    assert built.small is not None
    of_its_own = build_drafter(scenario(method="draft_model", draft_model="qwen3-0.6b"))
    assert of_its_own is not None
    assert of_its_own.small is None


def test_a_projection_reads_its_weights_or_computes() -> None:
    joint = Joint.of(2 * 4096**2, draft_head(find_model("llama-3.1-8b"), "eagle"), find_gpu("h100"), 1)
    assert joint.s(1) == joint.s(2) == joint.weights_s
    assert joint.s(100_000) == pytest.approx(100_000 * joint.token_s)


@pytest.mark.parametrize(
    ("config", "low", "high"),
    [
        ({"method": "ngram"}, 0.0, 0.0),
        ({"method": "eagle3"}, 0.02, 0.2),
        ({"method": "draft_model", "draft_model": "qwen3-0.6b"}, 0.2, 0.8),
        ({"method": "draft_model", "draft_model": "qwen3-0.6b", "cost": "profile"}, 0.2, 0.9),
    ],
    ids=str,
)
def test_a_drafter_takes_its_share_of_a_step(config: dict[str, str], low: float, high: float) -> None:
    """Three drafts for one request beside a step of Llama-3.1-8B: a head is cheap, a small model has layers."""
    chosen = scenario(**config)
    drafter = build_drafter(chosen)
    assert (drafter is None) == (high == 0.0)
    plain = build(scenario(num_speculative_tokens=0)).cost.step_s(step(1, 0))
    share = 0.0 if drafter is None else drafter.s(step(1, 3)) / plain
    assert low <= share <= high
    with_it = build(chosen).cost.step_s(step(1, 3))
    assert with_it >= build(scenario(cost=config.get("cost", "roofline"), method="ngram")).cost.step_s(step(1, 3))


def test_a_draft_model_has_measured_kernels_where_the_cost_has() -> None:
    own = {"method": "draft_model", "draft_model": "llama-3.1-8b"}
    measured = build_drafter(scenario("llama-3.1-8b", "profile", **own))
    assert measured is not None
    assert isinstance(measured.cost, ProfileCost)
    by_figures = build_drafter(scenario(**own))
    assert by_figures is not None
    assert isinstance(by_figures.cost, Roofline)


def test_mtp_is_for_models_that_name_it() -> None:
    drafter = build_drafter(scenario("deepseek-v3", gpu="h200", method="mtp"))
    assert drafter is not None
    with pytest.raises(InputError, match="no layers for multi-token prediction"):
        build(scenario(method="mtp"))


def test_a_drafter_takes_memory_from_the_cache() -> None:
    plain = build(scenario(num_speculative_tokens=0)).kv
    eagle, small = (
        build(scenario(**config)).kv
        for config in ({"method": "eagle3"}, {"method": "draft_model", "draft_model": "qwen3-0.6b"})
    )
    assert eagle.bytes_per_block == plain.bytes_per_block * 33 // 32  # a layer more
    assert eagle.num_gpu_blocks < plain.num_gpu_blocks
    assert small.bytes_per_block == plain.bytes_per_block + 16 * 112 * 1024
    assert build(scenario(method="ngram")).kv == plain
    tiny = find_model("qwen3-0.6b")
    assert memory_of(tiny, 1).weights == tiny.weight_bytes(1)


def test_fewer_drafts_than_requests_could_have_are_still_one_pass() -> None:
    """Some requests of a step may have found fewer drafts than others."""
    assert Drafter(Linear(1.0)).s(step(4, 1)._replace(drafted_tokens=3)) == 1.0
